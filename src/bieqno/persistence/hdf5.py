"""A check that the HDF5 library lacks, which netCDF files are read with."""

import mmap
import struct
from pathlib import Path

_HEADER = struct.Struct("<4sB3xQ")  # signature, version, size of the whole
_ENTRY = struct.Struct("<HHIQ")  # number, references, nothing, size; number 0 is what is free
_SIGNATURE = b"GCOL"


def check_heaps(path: Path) -> None:
    """Refuse a file on which HDF5 2.0 would hang: its global heap says that what is free has no length.

    The library goes from entry to entry by their lengths, without end where one is zero, and no Ctrl-C ends it. One changed bit
    of a file suffices.
    """
    if not path.is_file() or not path.stat().st_size:  # an empty file cannot be mapped
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        place = content.find(_SIGNATURE)
        while place >= 0 and place + _HEADER.size <= len(content):
            _, version, size = _HEADER.unpack_from(content, place)
            entry, end = place + _HEADER.size, min(place + size, len(content))
            while version == 1 and entry + _ENTRY.size <= end:
                number, _, _, length = _ENTRY.unpack_from(content, entry)
                step = length if number == 0 else _ENTRY.size + -(-length // 8) * 8
                if step % 2**64 == 0:
                    raise ValueError("a global heap has an entry of no length")
                entry += step
            place = content.find(_SIGNATURE, place + 1)
