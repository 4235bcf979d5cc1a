"""Damaged safetensors files: small good ones, and what accidents and ill will make of them."""

import json
import random
import re

DTYPES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I8": 1, "BOOL": 1, "F8_E4M3": 1, "I64": 8}
NUMBERS = [0, 1, 7, 8, 255, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30]
ODD = ["-1", "-0", "1.0", "1e3", "null", "true", '"2"', "[]", "{}", "NaN", "Infinity", "01", "[[[[[[[[1]]]]]]]]"]
TEXTS = ["", "a", "__metadata__", "\\u0000", "\\ud800", "\\ud83d\\ude00", "é", "../x", "dtype", "a" * 300]


def good_file(random: random.Random) -> bytes:
    """A small file that any reader accepts."""
    entries, data, place = [], b"", 0
    for number in range(random.randint(0, 4)):
        dtype = random.choice(list(DTYPES))
        shape = [random.choice([0, 1, 2, 3]) for _ in range(random.randint(0, 3))]
        size = DTYPES[dtype]
        for each in shape:
            size *= each
        name = random.choice(["layers.%d.weight", "bias%d", "é%d", "x.%d"]) % number
        entries.append((name, {"dtype": dtype, "shape": shape, "data_offsets": [place, place + size]}))
        place += size
        data += random.randbytes(size)
    if random.random() < 0.3:
        random.shuffle(entries)
    if random.random() < 0.5:
        entries.insert(0, ("__metadata__", {"format": "pt", "é": "ü"}))
    return assembled(json.dumps(dict(entries), ensure_ascii=random.random() < 0.5).encode(), data)


def assembled(header: bytes, data: bytes, length: int | None = None) -> bytes:
    """A file of a header and data, with the header's length or another number before it."""
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def mutated(random: random.Random) -> bytes:
    """A file that was good before one to three accidents."""
    content = good_file(random)
    for _ in range(random.randint(1, 3)):
        content = random.choice(MUTATIONS)(random, content)
    return content


def _split(content: bytes) -> tuple[bytes, bytes]:
    length = int.from_bytes(content[:8], "little")
    return content[8 : 8 + length], content[8 + length :]


def cut_short(random: random.Random, content: bytes) -> bytes:
    return content[: random.randint(0, len(content))]


def made_longer(random: random.Random, content: bytes) -> bytes:
    return content + random.randbytes(random.randint(1, 9))


def byte_changed(random: random.Random, content: bytes) -> bytes:
    if not content:
        return content
    changed = bytearray(content)
    changed[random.randrange(len(changed))] = random.choice([0, 32, 34, 44, 91, 123, 125, 128, 255])
    return bytes(changed)


def length_changed(random: random.Random, content: bytes) -> bytes:
    header, data = _split(content)
    length = random.choice([*(n for n in NUMBERS if n < 2**64), len(header) + 1, max(len(header) - 1, 0), 10**8 + 1])
    return assembled(header, data, length)


def number_changed(random: random.Random, content: bytes) -> bytes:
    """A number in the header becomes another one, or something that is none."""
    header, data = _split(content)
    places = list(re.finditer(rb"\d+", header))
    if not places:
        return content
    found = random.choice(places)
    near = str(max(int(found[0]) + random.choice([-1, 1, 2]), 0))
    new = random.choice([near, str(random.choice(NUMBERS)), random.choice(ODD)])
    return assembled(header[: found.start()] + new.encode() + header[found.end() :], data)


def text_changed(random: random.Random, content: bytes) -> bytes:
    """A name, field or dtype becomes another one."""
    header, data = _split(content)
    places = list(re.finditer(rb'"[^"]*"', header))
    if not places:
        return content
    found = random.choice(places)
    new = random.choice([*TEXTS, *DTYPES, "F4", "F6_E2M3", "U128", "bf16", "shape", "data_offsets"])
    return assembled(header[: found.start()] + f'"{new}"'.encode() + header[found.end() :], data)


def stretch_repeated(random: random.Random, content: bytes) -> bytes:
    """A member of the header twice, or some bytes of it left out."""
    header, data = _split(content)
    start = random.randint(0, len(header))
    stop = random.randint(start, len(header))
    if random.random() < 0.5:
        return assembled(header[:stop] + header[start:], data)
    return assembled(header[:start] + header[stop:], data)


def member_added(random: random.Random, content: bytes) -> bytes:
    header, data = _split(content)
    place = header.rfind(b"}")
    more = random.choice(
        [
            b',"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}',
            b',"__metadata__":{"a":"b"}',
            b',"__metadata__":null',
            b',"__metadata__":{"a":1}',
            b',"y":null',
            b',"z":["U8",[0],[0,0]]',
            b',"big":{"dtype":"F64","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}',
            b',"deep":' + b"[" * 3000 + b"]" * 3000,
        ]
    )
    return assembled(header[:place] + more + header[place:], data)


MUTATIONS = [
    cut_short, made_longer, byte_changed, length_changed, number_changed, number_changed, text_changed,
    stretch_repeated, member_added,
]  # fmt: skip
