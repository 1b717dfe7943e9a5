"""Leave to use matrix tiles, which Linux gives a process only when asked."""

from __future__ import annotations

import ctypes

_SYS_ARCH_PRCTL = 158  # x86-64
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18


def request_tiles() -> bool:
    """Whether this process, with all its threads, may use them from here on.

    Only for x86-64. May be asked again. A kernel that does not know them, or an alternative signal
    stack too small for their contents, is a no.
    """
    syscall = ctypes.CDLL(None).syscall
    return bool(syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0)
