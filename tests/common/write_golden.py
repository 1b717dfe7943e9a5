"""Writes tests/common/golden/: python -m tests.common.write_golden

messages_v<N>.json holds, for every message of both protocols with every field set, its bytes and
what they say. stream_v<N>.json holds the messages of one short Execute stream. Files of older
protocol versions are never rewritten: a server accepts its own version and the one before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from common.codec import PlanEncoder
from common.plan import StepPlan
from common.protocol import PROTOCOL_VERSION
from proto import executor_pb2, inference_pb2
from tests.common.histories import History

GOLDEN = Path(__file__).parent / "golden"

_INTEGERS = {
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_UINT64,
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_FIXED32,
    FieldDescriptor.TYPE_FIXED64,
}


def every_message() -> Iterator[Message]:
    """One message of every type, every field set; of a oneof, one message for each choice."""
    for file in (executor_pb2.DESCRIPTOR, inference_pb2.DESCRIPTOR):
        for descriptor in file.message_types_by_name.values():
            yield from _filled(descriptor)


def _filled(descriptor: Descriptor) -> Iterator[Message]:
    real_oneofs = [oneof for oneof in descriptor.oneofs if len(oneof.fields) > 1]
    num_choices = max((len(oneof.fields) for oneof in real_oneofs), default=1)
    for choice in range(num_choices):
        message = GetMessageClass(descriptor)()
        for field in descriptor.fields:
            others = [oneof.fields for oneof in real_oneofs if field in oneof.fields]
            if not others or others[0][choice % len(others[0])] is field:
                _fill(message, field)
        yield message


def _fill(message: Message, field: FieldDescriptor) -> None:
    value: Any
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        getattr(message, field.name)[_scalar(entry["key"])] = _scalar(entry["value"])
        return
    if field.message_type is not None:
        value = next(_filled(field.message_type))
        target = getattr(message, field.name)
        if field.label == FieldDescriptor.LABEL_REPEATED:
            target.add().CopyFrom(value)
        else:
            target.CopyFrom(value)
        return
    value = _scalar(field)
    if field.label == FieldDescriptor.LABEL_REPEATED:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


def _scalar(field: FieldDescriptor) -> Any:
    number = field.number
    if field.type in _INTEGERS:
        return 1000 + number
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return number + 0.5
    if field.type == FieldDescriptor.TYPE_BOOL:
        return True
    if field.type == FieldDescriptor.TYPE_STRING:
        return f"text {number}"
    if field.type == FieldDescriptor.TYPE_BYTES:
        return bytes([number, 0, 255, 7])
    if field.type == FieldDescriptor.TYPE_ENUM:
        return field.enum_type.values[-1].number
    raise TypeError(f"{field.full_name} has a type without a golden value")


def golden_messages() -> list[dict[str, object]]:
    return [
        {
            "message": message.DESCRIPTOR.full_name,
            "bytes": message.SerializeToString(deterministic=True).hex(),
            "says": MessageToDict(message, preserving_proto_field_name=True),
        }
        for message in every_message()
    ]


def golden_plans() -> list[StepPlan]:
    """The plans of a short stream with arrivals, growth, forks, releases and re-admission."""
    history, plans = History(2024, max_live=6), []
    for _ in range(12):
        history.churn()
        plans.append(history.plan())
    return plans


def golden_stream() -> list[str]:
    encoder = PlanEncoder(16)
    return [
        encoder.encode(plan, incarnation=5, epoch=2).SerializeToString(deterministic=True).hex()
        for plan in golden_plans()
    ]


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for name, value in (("messages", golden_messages()), ("stream", golden_stream())):
        lines = ",\n".join(json.dumps(entry) for entry in value)
        (GOLDEN / f"{name}_v{PROTOCOL_VERSION}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
