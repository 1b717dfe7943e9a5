from __future__ import annotations

import json

import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass

from common.codec import PlanDecoder
from common.protocol import OLDEST_ACCEPTED_VERSION, PROTOCOL_VERSION, accepts_version
from proto import executor_pb2, inference_pb2
from tests.common.histories import meaning
from tests.common.write_golden import GOLDEN, golden_messages, golden_plans, golden_stream

VERSIONS = range(OLDEST_ACCEPTED_VERSION, PROTOCOL_VERSION + 1)


def read(name: str, version: int) -> list[dict[str, str]]:
    entries: list[dict[str, str]] = json.loads((GOLDEN / f"{name}_v{version}.json").read_text())
    return entries


@pytest.mark.parametrize("version", VERSIONS)
def test_committed_bytes_still_say_what_they_said(version: int) -> None:
    types = {
        descriptor.full_name: GetMessageClass(descriptor)
        for file in (executor_pb2.DESCRIPTOR, inference_pb2.DESCRIPTOR)
        for descriptor in file.message_types_by_name.values()
    }
    for entry in read("messages", version):
        message = types[entry["message"]].FromString(bytes.fromhex(entry["bytes"]))
        assert MessageToDict(message, preserving_proto_field_name=True) == entry["says"]


def test_golden_messages_cover_every_message_and_field_of_this_version() -> None:
    assert read("messages", PROTOCOL_VERSION) == golden_messages()


def test_committed_stream_decodes_to_the_plans_it_was_made_of() -> None:
    decoder = PlanDecoder(16, incarnation=5, epoch=2)
    stream = json.loads((GOLDEN / f"stream_v{PROTOCOL_VERSION}.json").read_text())
    for data, plan in zip(stream, golden_plans(), strict=True):
        message = executor_pb2.StepMessage.FromString(bytes.fromhex(data))
        assert meaning(decoder.decode(message)) == meaning(plan)


def test_encoder_still_makes_the_committed_stream() -> None:
    committed = json.loads((GOLDEN / f"stream_v{PROTOCOL_VERSION}.json").read_text())
    for expected, made in zip(committed, golden_stream(), strict=True):
        parse = executor_pb2.StepMessage.FromString
        assert parse(bytes.fromhex(made)) == parse(bytes.fromhex(expected))


def test_this_version_and_the_one_before_are_accepted() -> None:
    assert accepts_version(PROTOCOL_VERSION)
    assert not accepts_version(PROTOCOL_VERSION + 1)
    assert not accepts_version(PROTOCOL_VERSION - 2)
    assert not accepts_version(0)
