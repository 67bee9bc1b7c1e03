"""Lines of remembered payers: what is written is read again, and what is no line says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bizrq.workloads.ownership.memory import (
    MAX_LINES,
    KnownLines,
    Memory,
    PayersUnreadable,
    fits,
    parse_payer,
    parse_payers,
    payer_line,
    payer_lines,
)

T = 1_700_000_000_000
STANDS = Memory("nlp", "Deployment/team-a/web", T)
GONE = Memory("nlp", "Job/team-a/train", T, T + 1500)


def test_lines_read_as_they_were_written() -> None:
    payers = {"9f": STANDS, "8e": GONE}
    assert parse_payers("nlp", payer_lines(payers)) == payers
    assert payer_lines(payers) == sorted(payer_lines(payers))


def test_the_models_of_a_payer_are_read_as_they_were_written() -> None:
    models = (("cpu", "A4"), ("gpu", "A100"))
    payers = {"9f": replace(STANDS, models=models), "8e": replace(GONE, models=models[:1])}
    assert parse_payers("nlp", payer_lines(payers)) == payers
    assert " models=cpu:A4,gpu:A100 Deployment/" in payer_line("9f", payers["9f"])
    assert " gone=2023-11-14T22:13:21.500Z models=cpu:A4 Job/" in payer_line("8e", payers["8e"])


def test_parts_that_a_later_version_adds_are_skipped() -> None:
    line = "v1 9f since=2023-11-14T22:13:20.000Z via=a=b zone= Deployment/team-a/web"
    assert parse_payer("nlp", line) == ("9f", STANDS)


def test_lines_that_are_known_are_neither_read_nor_worded_again() -> None:
    payers = {"9f": STANDS, "8e": GONE}
    lines = payer_lines(payers)
    known = KnownLines({line.split(" ")[1]: line for line in lines}, payers)
    more = {**payers, "7d": Memory("nlp", "Job/team-a/more", T)}
    assert payer_lines(more, known) == payer_lines(more)
    again = parse_payers("nlp", payer_lines(more), known)
    assert again == more
    assert again["9f"] is STANDS
    # Another line of a known uid is read anew.
    later = Memory("nlp", "Deployment/team-a/web", T, T + 1)
    assert parse_payers("nlp", [payer_line("9f", later)], known) == {"9f": later}
    assert payer_lines({"9f": later}, known) == [payer_line("9f", later)]


def test_a_line_reads_as_people_expect() -> None:
    assert payer_line("9f", STANDS) == "v1 9f since=2023-11-14T22:13:20.000Z Deployment/team-a/web"
    assert payer_line("8e", GONE) == (
        "v1 8e since=2023-11-14T22:13:20.000Z gone=2023-11-14T22:13:21.500Z Job/team-a/train"
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "v1",
        "v2 u since=2023-11-14T22:13:20.000Z Deployment/team-a/web",
        "v1  since=2023-11-14T22:13:20.000Z Deployment/team-a/web",
        "v1 u since=yesterday Deployment/team-a/web",
        "v1 u 2023-11-14T22:13:20.000Z Deployment/team-a/web",
        "v1 u since=2023-11-14T22:13:20.000Z gone=2023 Deployment/team-a/web",
        "v1 u since=2023-11-14T22:13:20.000Z gone= Deployment/team-a/web",
        "v1 u since=2023-11-14T22:13:20.000Z Deployment",
        "v1 u since=2023-11-14T22:13:20.000Z Deployment/team-a/",
        "v1 u since=2023-11-14T22:13:20.000Z Deployment/team-a/web more",
        "v1 u since=2023-11-14T22:13:20.000Z gone=2023-11-14T22:13:20.000Z Deployment/team-a/web more",
        "v1 u since=2023-11-14T22:13:20.000Z since=2023-11-14T22:13:20.000Z Deployment/team-a/web",
        "v1 u since=2023-11-14T22:13:20.000Z via=a via=b Deployment/team-a/web",
        "v1 u since=2023-11-14T22:13:20.000Z models= Deployment/team-a/web",
        "v1 u since=2023-11-14T22:13:20.000Z models=cpu:A4,cpu:A5 Deployment/team-a/web",
        "v1 u since=2023-11-14T22:13:20.000Z models=gpu:A4,cpu:A5 Deployment/team-a/web",
        "v1 u since=2023-11-14T22:13:20.000Z models=disk:A4 Deployment/team-a/web",
        "v1 u since=2023-11-14T22:13:20.000Z models=cpu:-A4 Deployment/team-a/web",
    ],
)
def test_what_is_no_line_says_so(line: str) -> None:
    with pytest.raises(PayersUnreadable):
        parse_payer("nlp", line)


def test_a_uid_stands_in_one_line() -> None:
    with pytest.raises(PayersUnreadable, match="another line has this uid"):
        parse_payers("nlp", [payer_line("u", STANDS), payer_line("u", GONE)])


def test_a_record_is_bounded_in_lines_and_length() -> None:
    lines = [payer_line(str(number), STANDS) for number in range(MAX_LINES)]
    assert fits(lines)
    assert not fits([*lines, payer_line("more", STANDS)])
    assert not fits(["x" * 1024 * 1025])
    with pytest.raises(PayersUnreadable, match="at most 10000"):
        parse_payers("nlp", [*lines, payer_line("more", STANDS)])
