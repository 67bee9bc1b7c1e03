"""What docs/devices.md tells about devices, held against the counting."""

from __future__ import annotations

import yaml

from bizrq.builtin import shared_devices
from bizrq.workloads.hami_devices import HamiDevice
from tests.docs.test_docs import blocks, page
from tests.support.workload_language import usage


def test_the_examples_cost_what_the_page_says() -> None:
    """The last document of each example costs what stands below it, and nothing else."""
    text = page("docs/devices.md")
    examples, costs = blocks(text, "yaml"), blocks(text)
    assert examples
    for example, told in zip(examples, costs, strict=True):
        row = usage(list(yaml.safe_load_all(example)))[-1]
        assert row.error is None
        assert [f"{name} {amount}" for name, amount in sorted((row.usage or {}).items())] == told.splitlines()


def test_every_device_that_hami_shares_has_its_row() -> None:
    """The page's table is what `hami.yaml` says."""
    rows = [line for line in page("docs/devices.md").splitlines() if line.startswith("| `")]
    start = rows.index(hami_rows()[0])
    assert rows[start : start + len(shared_devices())] == hami_rows()


def hami_rows() -> list[str]:
    return [
        f"| `{device.vendor}` | {_count(device)} | {_memory(device)} | {_cores(device)} | {_besides(device)} |"
        for device in shared_devices()
    ]


def _count(device: HamiDevice) -> str:
    name = f"`{device.count}`"
    if device.one:
        return f"one; {name} is the size of a profile"
    return f"{name}, 1 where only parts are asked for" if device.implied else name


def _memory(device: HamiDevice) -> str:
    how = device.memory
    if how is None:
        return "whole cards"
    text = f"`{how.name}` in {'MiB' if how.mib == 1 else 'GiB' if how.mib == 1024 else f'{how.mib} MiB'}"
    text += ", bytes with a suffix" if how.bytes else ""
    if how.only:
        text += f", one of {', '.join(map(str, how.only))}"
    if how.steps:
        text += f", rounded up to {', '.join(map(str, how.steps))}, {how.card}"
    return text + (f"; `{device.percentage}`" if device.percentage else "")


def _cores(device: HamiDevice) -> str:
    how = device.cores
    if how is None:
        return ""
    unsaid = {"none": "0", "full": str(how.full), "exclusive": f"{how.full} with all the memory, else 0"}[how.unsaid]
    needs = "".join(f", with `{key}: {value}` only" for key, value in how.needs.items())
    return f"`{how.name}` of {how.full}, unsaid {unsaid}{needs}"


def _besides(device: HamiDevice) -> str:
    notes = []
    if device.pairs:
        notes.append("1 becomes 2, other odd numbers are refused")
    if device.several == "whole":
        notes.append("parts of one device only")
    if device.several == "written":
        notes.append("several are whole" + (", as totals of the container" if device.totals else ""))
    if device.slices is not None:
        notes.append(f"`{device.slices.name}` is one of {device.slices.of} parts")
    return "; ".join(notes)
