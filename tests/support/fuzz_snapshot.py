"""Forged snapshots: arrays and manifests changed at random, their checksums right, then opened and used.

    python tests/support/fuzz_snapshot.py --minutes 5 --seed 1          other seeds, other changes
    python tests/support/fuzz_snapshot.py --replay 17                   one change again, in this process
    python tests/support/fuzz_snapshot.py --minutes 5 --sanitize        with the address sanitizer (built first)

A change must be refused with a SnapshotError, or leave a snapshot with which everything works: match one and many,
explain, iterate, change, save, open again. Answers may be wrong; a crash, a hang (60 s), memory without end or an error
that is no HitboxError is a failure. Work is done in child processes, so that a crash costs one child and is counted
under its seed. With --sanitize arrays are copied to memory of their exact size, so that one byte too far is noticed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

ROOT = Path(__file__).parents[2]
HANG = 60
MEMORY = 6 << 30
KERNELS = "HITBOX_FUZZ_KERNELS"
NUMBERS = [0, 1, 2, 3, 7, 63, 64, 65, 127, 255, 511, 512, 513, 2047, 2048, 4096, 65535, 2**31 - 1, 2**31, 2**32 - 1]
NUMBERS += [2**62, 2**63 - 1, -1, -2, -(2**31), -(2**63), -(2**63) + 1]


def use_sanitized_kernels() -> None:
    """In a child whose kernels were built with the address sanitizer: these, and arrays on the heap."""
    path = os.environ.get(KERNELS)
    if not path:
        return
    spec = importlib.util.spec_from_file_location("hitbox.engine._kernels", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["hitbox.engine._kernels"] = module
    spec.loader.exec_module(module)
    from hitbox.storage import array_files

    maps = array_files.read

    def copies(*arguments: Any) -> dict[str, np.ndarray]:
        found = {name: np.array(array) for name, array in maps(*arguments).items()}
        for array in found.values():
            array.flags.writeable = False
        return found

    array_files.read = copies


use_sanitized_kernels()

from hitbox import HitboxError, Index, Schema  # noqa: E402
from hitbox.encoding.keys import Keys  # noqa: E402
from hitbox.encoding.schema import Attribute  # noqa: E402
from hitbox.engine import _kernels  # noqa: E402
from hitbox.errors import SnapshotError  # noqa: E402
from hitbox.index import sharded  # noqa: E402
from hitbox.index.load import bulk_load  # noqa: E402
from hitbox.language import DEFAULT_LIMITS  # noqa: E402
from hitbox.storage import array_files, snapshot  # noqa: E402

# ---- snapshots to start from


def base(folder: Path, kind: str) -> Path:
    """A snapshot of this kind; small, but with everything that larger ones have."""
    path = folder / kind
    if not path.exists():
        MAKERS[kind](path)
    return path


def ranges(path: Path) -> None:
    """Bitmaps with priorities of their own and shared, dead boxes, a tail, residual predicates, strings."""
    rng = np.random.default_rng(1)
    index = Index(Schema({"a": "int", "b": "float", "s": "string", "t": "timestamp"}), tail=64, band=600, lines=4)
    low = rng.integers(0, 1000, 3000)
    wide = {"id": [f"w{i}" for i in range(3000)], "a_low": low, "a_high": low + rng.integers(0, 200, 3000)}
    wide |= {"b_low": rng.random(3000) * 5, "b_high": 5 + rng.random(3000) * 5, "priority": rng.integers(0, 10, 3000)}
    index.load(pa.table(wide))
    for i in range(60):
        text = f"a > {i} AND s LIKE '%{i % 5}%'" if i % 2 else f"s IN ('x{i}', 'y') OR b < {i % 7}"
        index.subscribe(f"t{i}", text, priority=i % 10)
    index.unsubscribe_many([f"w{i}" for i in range(0, 3000, 11)])
    index.save(path)


def wide_ranges(path: Path) -> None:
    """Dense segments: numbers that are stored, and numbers that follow from the order of the boxes; dead boxes."""
    rng = np.random.default_rng(4)
    index = Index(Schema({"a": "int", "b": "float", "c": "int"}), tail=64, kind="dense")
    for start, count in ((0, 1500), (5000, 900)):
        wide: dict[str, Any] = {"id": 3 * rng.permutation(count) + start, "priority": rng.integers(0, 10, count)}
        for name in "abc":
            low = rng.integers(0, 1000, count)
            wide |= {f"{name}_low": low, f"{name}_high": low + rng.integers(0, 2000, count)}
        index.load(pa.table(wide))
    index.unsubscribe_many(list(range(0, 7000, 33)))
    index.save(path)


def arranged_ranges(path: Path) -> None:
    """Bitmaps in which the numbers of a block follow from its first one."""
    rng = np.random.default_rng(5)
    index = Index(Schema({"a": "int", "s": "string"}), tail=64, band=600)
    low = rng.integers(0, 10_000, 2000)
    ids = [f"r{i}" for i in rng.permutation(2000)]
    index.load(pa.table({"id": ids, "a_low": low, "a_high": low + 9, "priority": rng.integers(0, 10, 2000)}))
    index.unsubscribe_many(ids[::17])
    index.save(path)


def compact_ranges(path: Path) -> None:
    """Compact bitmaps: an attribute with few values, one with many, some without lines in most tiles; dead boxes."""
    rng = np.random.default_rng(6)
    index = Index(Schema(dict.fromkeys("abcd", "int")), tail=64, band=600, lines=24, compact=True)
    for start, count in ((0, 2500), (5000, 700)):
        low, few = rng.integers(0, 100_000, count), rng.integers(0, 9, count)
        some = {"id": 3 * rng.permutation(count) + start, "priority": rng.integers(0, 10, count)}
        some |= {"a_low": low, "a_high": low + rng.integers(0, 50_000, count), "b_low": few, "b_high": few + 2}
        for name in "cd":
            bounds = [int(one) if one < 60 else None for one in rng.integers(0, 2500, count)]
            some |= {f"{name}_low": bounds, f"{name}_high": bounds}
        index.load(pa.table(some))
    index.unsubscribe_many(list(range(0, 7000, 33)))
    index.save(path)


def equalities(path: Path) -> None:
    """Postings."""
    index = Index(Schema({"a": "int", "s": "string", "c": "int"}), tail=16)
    for i in range(400):
        index.subscribe(i, f"a = {i * 37 % 911} AND c < {i}" if i % 3 else f"s = 'name{i}'", priority=i % 10)
    index.unsubscribe_many(list(range(0, 400, 9)))
    index.save(path)


def many_attributes(path: Path) -> None:
    """Rows that list their attributes, some of them too large for their place."""
    rng = np.random.default_rng(2)
    index = Index(Schema({f"a{i}": "int" for i in range(70)}), tail=16, kind="bitmap", lines=2)
    for i in range(300):
        chosen = rng.choice(70, 40 if i % 10 == 0 else 5, replace=False)
        index.subscribe(i, " AND ".join(f"a{a} BETWEEN {a % 5} AND {a % 5 + 20}" for a in chosen), priority=i % 3)
    index.save(path)


def large_boxes(path: Path) -> None:
    """Few attributes, and rows elsewhere; keys that rows hold whole."""
    rng = np.random.default_rng(3)
    index = Index(Schema({f"a{i}": "float" for i in range(12)}), tail=16, kind="bitmap", lines=2)
    for i in range(500):
        chosen = rng.choice(12, 11 if i % 20 == 0 else 2, replace=False)
        index.subscribe(i, " AND ".join(f"a{a} > {float(rng.random()) * 2}" for a in chosen))
    index.save(path)


def programs(path: Path) -> None:
    """Subscriptions whose boxes leave much open, of several shapes, with lists and strings."""
    index = Index(Schema({"a": "int", "b": "float", "s": "string", "t": "string"}), tail=32)
    for i in range(150):
        unlike = ", ".join(f"'x{i + n}'" for n in range(20))
        either = " AND ".join(f"(a = {n * i} OR b > {n}.5 OR s = 'y{n}')" for n in range(1 + i % 5))
        texts = [f"s NOT IN ({unlike}) AND a <> {i}", f"{either} AND t <> 'x{i}'", f"(t = 'x' XOR a < {i}) OR b = 2.5"]
        index.subscribe(f"s{i}", texts[i % 3] + (" AND t LIKE '%x'" if i % 7 == 0 else ""), priority=i % 10)
    index.unsubscribe_many([f"s{i}" for i in range(0, 150, 11)])
    index.save(path)


DOCUMENT = {"a": "int", "b": "float", "s": "string", "ip": "string", "tags": "string[]", "items": [{"sku": "string"}]}


def document_predicates() -> list[str]:
    """Conditions on elements, on fragments of texts and on functions, alone and beside others."""
    kinds = [
        "ANY(tags) = 'x{0}'",
        "ANY(tags) IN ('y', 'x{0}') AND a > {0}",
        "EXISTS(items WHERE sku = 'name{0}')",
        "s LIKE '%e{0}%'",
        "s ILIKE '%ITY{0}%' AND b < {0}",
        "s LIKE '%{0}' OR a - b > {0}",
        "LOWER(s) = 'x{0}' AND (a <> {0} OR LENGTH(s) = 3)",
        "ip IN NETWORK '10.0.{0}.0/24'",
        "a > b XOR s REGEXP 'n+{0}'",
    ]
    return [kinds[n % len(kinds)].format(n % 50) for n in range(180)]


def documents(path: Path) -> None:
    """Anchors, derived attributes and programs."""
    index = Index(Schema(DOCUMENT), tail=32)
    for i, text in enumerate(document_predicates()):
        index.subscribe(i, text, priority=i % 10)
    index.unsubscribe_many(list(range(0, 180, 7)))
    index.save(path)


def open_documents(path: Path) -> None:
    """No schema: all attributes are derived."""
    index = Index(tail=32)
    for i, text in enumerate(document_predicates()):
        index.subscribe(i, text, priority=i % 10)
    index.save(path)


def about(path: Path) -> None:
    """Subscriptions that say something about themselves."""
    schema = {"price": "float", "age": Attribute("int", role="information"), "c": Attribute("string", "information")}
    index = Index(Schema(schema), tail=32)
    for i in range(200):
        index.subscribe(f"s{i}", f"price > {i}", about={"age": i, "c": f"city{i % 7}"}, priority=i % 10)
    index.save(path)


def brute(path: Path) -> None:
    """A matcher whose arrays are plain boxes."""
    index = Index(Schema({"a": "int", "s": "string"}), "brute")
    for i in range(100):
        index.subscribe(i, f"a BETWEEN {i} AND {i + 9} OR s = 'x{i}'", priority=i % 10)
    index.save(path)


def parts(path: Path) -> None:
    """Several parts that share their dictionaries."""
    keys = Keys(Schema({"a": "int", "s": "string"}))
    found = bulk_load.read(
        pa.table({"id": [f"p{i}" for i in range(2500)], "where": [f"a > {i} OR s = 'n{i % 50}'" for i in range(2500)]}),
        keys.schema,
        DEFAULT_LIMITS,
    )
    keys.admit(found.strings(keys))
    encoded = found.encode(keys, DEFAULT_LIMITS)
    place = sharded.part_of(encoded.ids, 3)
    with snapshot.draft(path) as folder:
        files = snapshot.add(folder, keys.arrays())
        names = []
        for number in range(3):
            rows = np.flatnonzero(place == number)
            table = found_rows(encoded, rows)
            index = sharded.index_of(keys, table)
            names.append(sharded.part_name(number))
            files |= sharded.write_part(folder, index, names[-1])
        meta = index.compacted().facts() | {"subscriptions": 2500, "parts": names}
        snapshot.publish(path, folder, meta, files)


def found_rows(encoded: Any, rows: np.ndarray) -> Any:
    first = np.cumsum(encoded.count) - encoded.count
    boxes = np.concatenate([np.arange(first[row], first[row] + encoded.count[row]) for row in rows])
    return bulk_load.Encoded(
        encoded.ids.take(pa.array(rows)),
        encoded.where.take(pa.array(rows)),
        encoded.priority[rows],
        encoded.count[rows],
        encoded.exact[boxes],
        encoded.boxes.take(boxes),
    )


MAKERS = {
    one.__name__: one
    for one in (
        ranges,
        wide_ranges,
        arranged_ranges,
        compact_ranges,
        equalities,
        many_attributes,
        large_boxes,
        programs,
        documents,
        open_documents,
        about,
        brute,
        parts,
    )
}

# ---- changes


def change(rng: np.random.Generator, array: np.ndarray) -> np.ndarray | None:
    """The array with something changed; None: without it."""
    array = np.array(array)
    size = array.size
    what = int(rng.integers(0, 16))
    flat = array.reshape(-1)
    info = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None

    def number() -> int:
        chosen = int(rng.choice(np.array(NUMBERS, object)))
        if rng.random() < 0.4:
            chosen = int(rng.integers(-3, 3)) + int(rng.choice([size, size // 2, int(flat[rng.integers(size)])]))
        return chosen if info is None else min(max(chosen, int(info.min)), int(info.max))

    if what == 0:
        return array[: int(rng.integers(0, size + 1))]
    if what == 1:
        return np.concatenate([array, array[: int(rng.integers(0, 4))]])
    if what == 2 and rng.random() < 0.2:
        return None
    if what == 3 and rng.random() < 0.3:
        return array.astype(rng.choice(["int8", "uint8", "int32", "uint32", "int64", "uint64", "float64", "bool"]))
    if what == 4 and rng.random() < 0.3:
        return array.reshape(1, -1)
    if not size:
        return np.full(int(rng.integers(1, 100)), 1, array.dtype)
    if what == 5:
        rng.shuffle(flat)
    elif what == 6:
        at = int(rng.integers(0, size))
        flat[at:] = flat[at]
    elif what == 7:
        raw = flat.view(np.uint8)
        raw[rng.integers(0, raw.size, int(rng.integers(1, 9)))] = rng.integers(0, 256)
    elif what == 8:
        raw = flat.view(np.uint8)
        raw[int(rng.integers(0, raw.size))] ^= np.uint8(1 << int(rng.integers(0, 8)))
    elif what == 9 and info is not None:
        at = int(rng.integers(0, size))
        flat[at : at + int(rng.integers(1, 600))] = rng.integers(info.min, info.max, dtype=array.dtype)
    elif what == 10:
        one, two = rng.integers(0, size, 2)
        flat[one], flat[two] = flat[two], flat[one]
    elif what == 11:
        flat[:] = number()
    else:
        for at in rng.integers(0, size, int(rng.integers(1, 5))):
            flat[at] = number()
    return array


def change_facts(rng: np.random.Generator, facts: dict[str, Any]) -> None:
    """Something else in the manifest."""
    values = [None, 0, -1, 2**40, "", "x", "../x", [], {}, ["a", "a"], [[]], "int", "string", "brute", "rein", True]
    key = rng.choice(sorted(facts))
    value = values[int(rng.integers(0, len(values)))]
    if key == "derived" and facts["derived"] and rng.random() < 0.8:
        at = int(rng.integers(0, len(facts["derived"])))
        one = facts["derived"][at]
        if one is None or rng.random() < 0.3:
            facts["derived"][at] = value
        else:
            one[rng.choice(sorted(one))] = rng.choice(np.array([value, [value], ["s"], ["LOWER(s)"]], object))
    elif key == "schema" and isinstance(facts["schema"], list) and rng.random() < 0.8:
        one = facts["schema"][int(rng.integers(0, len(facts["schema"])))]
        one[rng.choice(sorted(one))] = value
    elif key == "files":
        name = rng.choice(sorted(facts["files"]))
        facts["files"][str(value)] = facts["files"].pop(name)
    else:
        facts[key] = value


def forge(rng: np.random.Generator, source: Path, target: Path) -> str:
    """A snapshot with some arrays changed, checksums right; what was changed."""
    facts = snapshot.facts_of(source)
    version = facts.pop("version")
    old, new = snapshot.folder_of(source, version), snapshot.folder_of(target, 1)
    shutil.copytree(old, new, copy_function=os.link)
    (new / "manifest.json").unlink()
    said = []
    files = facts.pop("files")
    for name in rng.choice(sorted(files), int(rng.choice([1, 1, 1, 2, 3])), replace=False):
        file = new / f"{name}.npy"
        changed = change(rng, np.load(file))
        file.unlink()
        said.append(str(name))
        if changed is None:
            del files[name]
        else:
            files[name] = array_files.write(file, changed)
    facts |= {"files": files}
    if rng.random() < 0.08:
        change_facts(rng, facts)
        said.append("manifest")
    files = facts.pop("files", {})
    (new / "manifest.json").write_text(snapshot.manifest_text(facts, files))
    (target / "CURRENT").write_text(snapshot.current_text(1))
    return ", ".join(said)


# ---- use


def values(rng: np.random.Generator, schema: Schema, count: int) -> list[dict[str, Any]]:
    draw = {
        "int": lambda: int(rng.integers(-5, 1000)),
        "float": lambda: float(rng.random() * 12),
        "string": lambda: str(rng.choice(["y", "x2", "name3", "city1", "n7", "zz"])),
        "timestamp": lambda: "2024-01-01",
        "bool": lambda: True,
    }
    draw |= {f"{kind}[]": lambda one=one: [one(), None] for kind, one in draw.items()}
    draw["object[]"] = lambda: [{"sku": draw["string"]()}]
    names = [(name, one.type) for name, one in schema.items() if one.role != "information"]
    if schema.is_open:
        names = [(name, one.type) for name, one in Schema(DOCUMENT).items()]
    return [{name: draw[kind]() for name, kind in names if rng.random() < 0.9} for _ in range(count)]


def use(rng: np.random.Generator, path: Path, again: Path) -> None:
    """Everything that can be done with a snapshot."""
    simd = str(rng.choice(_kernels.simd_levels()))
    options = {} if snapshot.facts_of(path)["matcher"] != "hitbox" else {"simd": simd, "tail": 64}
    index = Index.open(path, verify=bool(rng.random() < 0.7), **options)
    events = values(rng, index.schema, 150)
    index.match_batch(events, threads=2)
    index.match_batch(events[:20])
    for event in events[:4]:
        matched = index.match(event)
        index.match(event, limit=3)
        list(index.match_levels(event))
        index.explain(event, misses=3)
        if matched:
            index.explain(event, matched[0])
    if index.takes_intervals:
        names = [name for name, one in index.schema.items() if one.type == "int" and one.role != "information"]
        ranged = [event | {name: {"low": 3, "high": 400} for name in names} for event in events]
        with contextlib.suppress(HitboxError):
            index.match_batch(ranged)
            index.match(ranged[0])
    ids = list(index)
    for id in ids[:20]:
        index.where(id), index.about(id), index.priority(id)
    list(index._state.rows())
    number = isinstance(ids[0], int) if ids else True
    index.unsubscribe_many(ids[::3])
    names = [name for name, one in index.schema.items() if one.role != "information"]
    text = f"{names[0] if names else 's'} IS NULL"
    for i in range(70):
        index.subscribe(10**6 + i if number else f"new{i}", text, priority=i % 10)
    index.match_batch(events)
    index.save(again)
    Index.open(again).match_batch(events)
    asked = [name for name, one in index.schema.items() if one.role != "information"] or ["s"]
    index.check()
    sharded.Shards.open(path).match_batch(pa.table({name: pa.nulls(3, pa.null()) for name in asked}))


def attempt(seed: int, bases: Path, scratch: Path) -> str:
    """What came of one change: "refused", "used", or "failed" with the reason on stderr."""
    rng = np.random.default_rng(seed)
    source = base(bases, list(MAKERS)[seed % len(MAKERS)])
    target = scratch / str(seed)
    said = ""
    try:
        said = forge(rng, source, target)
        use(rng, target, scratch / "again")
        return "used"
    except SnapshotError:
        return "refused"
    except HitboxError:
        return "used"  # an answer that says what is wrong
    except Exception:
        print(f"seed {seed} ({source.name}: {said}):", file=sys.stderr)
        traceback.print_exc()
        return "failed"
    finally:
        shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(scratch / "again", ignore_errors=True)


def child(first: int, seconds: float, bases: Path, scratch: Path) -> None:
    """Seeds from `first` on, noting each before it is tried."""
    if not os.environ.get(KERNELS):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    os.fsync = lambda _: None  # type: ignore[assignment]
    end = time.monotonic() + seconds
    counts: Counter[str] = Counter()
    seed = first
    while time.monotonic() < end:
        (scratch / "seed").write_text(json.dumps({"seed": seed, **counts}))
        signal.alarm(HANG)  # its default action ends the process
        counts[attempt(seed, bases, scratch)] += 1
        signal.alarm(0)
        seed += 1
    (scratch / "seed").write_text(json.dumps({"seed": seed, **counts}))


def fuzz(seconds: float, seed: int, environment: Mapping[str, str] | None = None) -> tuple[Counter[str], list[str]]:
    """How often what came of a change, and a line for each failure."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="hitbox-fuzz-") as folder:
        bases, scratch = Path(folder) / "bases", Path(folder) / "scratch"
        bases.mkdir()
        scratch.mkdir()
        for kind in MAKERS:
            base(bases, kind)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            command = [sys.executable, __file__, "--child", str(seed), str(min(left, 120)), str(bases), str(scratch)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            noted = json.loads((scratch / "seed").read_text())
            seed = noted.pop("seed")
            counts.update(noted)
            if done.returncode:
                counts["failed"] += 1
                failures.append(f"seed {seed}: the process ended with {done.returncode}\n{_shortened(done.stderr)}")
                seed += 1
            elif done.stderr.strip():
                failures.append(done.stderr.strip()[-6000:])
    return counts, failures


def _shortened(text: str) -> str:
    """The first lines of a report by a sanitizer, or the last ones of a traceback."""
    start = text.find("AddressSanitizer")
    return "\n".join(text[start:].splitlines()[:16]) if start >= 0 else text[-3000:]


def sanitized() -> dict[str, str]:
    """The environment of children with kernels that are built with the address sanitizer, here and now."""
    folder = ROOT / "build" / "sanitized"
    # GCC 12 takes variables of unrolled loops for ones that are out of scope
    flags = "-fsanitize=address -fno-sanitize-address-use-after-scope -fno-omit-frame-pointer -g1"
    cmake = str(Path(sys.executable).with_name("cmake"))  # that of the environment, which is new enough
    make = [cmake, "-S", ROOT, "-B", folder, "-DCMAKE_BUILD_TYPE=None", f"-DCMAKE_CXX_FLAGS={flags}"]
    subprocess.run([*make, f"-DPython_EXECUTABLE={sys.executable}"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([cmake, "--build", folder, "-j", "2"], check=True, stdout=subprocess.DEVNULL)
    cxx = os.environ.get("CXX", "c++")
    names = ("libasan.so", "libstdc++.so")  # the second, so that the first finds how exceptions are thrown
    libraries = [
        subprocess.run([cxx, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in names
    ]
    kernels = next(folder.glob("_kernels*.so"))
    return os.environ | {
        KERNELS: str(kernels),
        "LD_PRELOAD": ":".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "PYTHONMALLOC": "malloc",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay", type=int)
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(int(asked.child[0]), float(asked.child[1]), Path(asked.child[2]), Path(asked.child[3]))
        return
    if asked.replay is not None:
        with tempfile.TemporaryDirectory(prefix="hitbox-fuzz-") as folder:
            (Path(folder) / "bases").mkdir()
            print(attempt(asked.replay, Path(folder) / "bases", Path(folder)))
        return
    environment = sanitized() if asked.sanitize else None
    counts, failures = fuzz(asked.minutes * 60, asked.seed * 1_000_000, environment)
    print("\n\n".join(failures))
    print(f"{counts.total()} changes: {counts['refused']} refused, {counts['used']} used, {counts['failed']} failed")
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
