"""Laws of quantities, against arithmetic in fractions that shares nothing with the code, and against kubectl."""

import json
import random
import re
import subprocess
import time
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bizrq.units import resources
from bizrq.units.quantity import (
    MAX,
    NANO,
    Format,
    QuantityError,
    canonical,
    parse,
    parse_sum,
    parse_with_format,
    round_up_milli,
)
from bizrq.units.quantity import text as text_of_amount
from tests.support.binaries import kubectl

FACTORS = {
    **{suffix: Fraction(10) ** power for suffix, power in zip("num kMGTPE", range(-9, 21, 3), strict=True)},
    **{f"{letter}i": Fraction(1024) ** (power + 1) for power, letter in enumerate("KMGTPE")},
}
FACTORS[""] = FACTORS.pop(" ")

signs = st.sampled_from(["", "", "+", "-"])
digits = st.text("0123456789", max_size=24)
plain_suffixes = st.sampled_from(sorted(FACTORS))
exponents = st.builds("{}{}{}".format, st.sampled_from("eE"), signs, st.text("0123456789", min_size=1, max_size=2))
suffixes = plain_suffixes | exponents


@st.composite
def texts(draw: st.DrawFn) -> str:
    """What the grammar allows, with at least one digit."""
    whole, fraction = draw(st.tuples(digits, st.none() | digits).filter(lambda pair: pair[0] or pair[1]))
    return draw(signs) + whole + ("" if fraction is None else f".{fraction}") + draw(suffixes)


amounts = (
    st.integers(-MAX, MAX) | st.integers(-(10**21), 10**21) | st.integers(-(10**15), 10**15).map(lambda n: n * NANO)
)
formats = st.sampled_from(Format)


laws = settings(max_examples=300)


def meant(text: str) -> Fraction:
    """The exact value of a text of the grammar."""
    number, suffix = re.fullmatch(r"([-+]?[0-9.]+)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    whole, _, fraction = number.lstrip("+-").partition(".")
    factor = FACTORS[suffix] if suffix in FACTORS else Fraction(10) ** int(suffix[1:])
    value = Fraction(int(whole + fraction or "0"), 10 ** len(fraction)) * factor
    return -value if number.startswith("-") else value


def away_from_zero(value: Fraction) -> int:
    ceiling = -(-abs(value).numerator // abs(value).denominator)
    return -ceiling if value < 0 else ceiling


@laws
@given(texts())
@example("1.000000000000000000001Ki")
@example("7.99999999999999999999Ei")
@example("9223372036854775807.000000000")
@example("9223372036854775806.9999999991")
def test_a_text_of_the_grammar_means_its_value_rounded_up_at_nano(text: str) -> None:
    """And what is beyond 2**63 - 1 units is refused."""
    expected = away_from_zero(meant(text) * NANO)
    if abs(expected) > MAX:
        with pytest.raises(QuantityError):
            parse(text)
    else:
        assert parse(text) == expected


@laws
@given(amounts, formats)
def test_reading_what_was_written_gives_the_same_amount(nano: int, fmt: Format) -> None:
    """In every format, exactly."""
    assert parse(canonical(nano, fmt)) == nano


sums = (
    st.integers(0, 10**45) | st.integers(0, 10**27).map(lambda n: n * NANO) | st.integers(0, 90).map(lambda n: 1 << n)
)
resource_names = st.sampled_from(["limits.cpu", "limits.memory", "cash/limits.memory", "requests.memory.DDR5", "pods"])


@laws
@given(resource_names, sums)
@example("cash/limits.memory", 9600 * 2**50 * NANO)
@example("limits.memory", 14 * 2**60 * NANO)
@example("limits.cpu", 10**21 * NANO)
@example("limits.cpu", MAX + 1)
def test_whatever_is_written_of_a_sum_is_read_again(resource: str, nano: int) -> None:
    """However large it is, exactly; and what one quantity may be is read as parse reads it."""
    written = text_of_amount(resource, nano)
    assert parse_sum(written) == nano
    if nano <= MAX:
        assert parse(written) == nano


@laws
@given(texts() | st.text(max_size=70) | st.text("0123456789.+-eEinumkKMGTP_ ", max_size=70))
def test_a_sum_is_read_as_a_quantity_is_or_in_its_own_canonical_form(written: str) -> None:
    """Beyond MAX nothing but digits and a suffix, and never more than 60 digits and e99."""
    try:
        nano = parse_sum(written)
    except QuantityError:
        return
    try:
        assert parse(written) == nano
    except QuantityError:
        assert re.fullmatch(r"[0-9]{1,60}([numkMGTPE]|[KMGTPE]i|e[0-9]{1,2})?", written, re.ASCII)
        assert nano == meant(written) * NANO


@pytest.mark.parametrize(
    "written",
    [
        "",
        "x",
        "1e100",
        "9" * 61,
        "9" * 60 + ".0",
        "1.5e30",
        "-1e30",
        "+1e30",
        "1E30",
        "\u0661",
        "1 Gi",
        "1Zi",
        None,
        True,
        [],
    ],
)
def test_nothing_wilder_than_what_is_written_is_read_as_a_sum(written: object) -> None:
    with pytest.raises(QuantityError):
        parse_sum(written)


@laws
@given(texts())
def test_the_canonical_text_is_its_own_canonical_text(text: str) -> None:
    """Written twice is written once, format and all."""
    try:
        nano, fmt = parse_with_format(text)
    except QuantityError:
        return
    shown = canonical(nano, fmt)
    assert canonical(*parse_with_format(shown)) == shown


@laws
@given(amounts, formats)
def test_a_canonical_text_has_no_fraction_and_the_largest_suffix(nano: int, fmt: Format) -> None:
    """A whole number that the next larger suffix could not carry."""
    shown = canonical(nano, fmt)
    mantissa, suffix = re.fullmatch(r"(-?[0-9]+)(.*)", shown).groups()  # type: ignore[union-attr]
    assert int(mantissa) == 0 or not mantissa.lstrip("-").startswith("0")
    if suffix.endswith("i"):
        assert fmt is Format.BINARY_SI
        assert int(mantissa) % 1024 or suffix == "Ei"
    elif nano and suffix != "E":
        assert int(mantissa) % 1000 or (fmt is Format.BINARY_SI and abs(nano) >= 1024 * NANO)


@laws
@given(texts(), texts())
def test_amounts_are_ordered_as_their_values_are(a: str, b: str) -> None:
    """Rounding never turns two round."""
    try:
        low, high = sorted((a, b), key=meant)
        assert parse(low) <= parse(high)
    except QuantityError:
        return


@laws
@given(amounts, amounts)
def test_sums_are_exact(a: int, b: int) -> None:
    """A sum of texts is the text of the sum."""
    texts_of = [resources.text_of({"limits.cpu": amount}) for amount in (a, b)]
    assert resources.total(map(resources.parse_resources, texts_of)) == {"limits.cpu": a + b}


@laws
@given(amounts)
def test_milli_rounds_up_by_less_than_one(nano: int) -> None:
    """To a whole milli, never towards zero, and the negative as the positive."""
    rounded = round_up_milli(nano)
    assert rounded % 10**6 == 0
    assert 0 <= abs(rounded) - abs(nano) < 10**6
    assert rounded == -round_up_milli(-nano)


@laws
@given(st.dictionaries(st.sampled_from("abc"), amounts), st.dictionaries(st.sampled_from("abc"), amounts))
def test_growth_is_what_takes_the_old_up_to_the_new(new: dict[str, int], old: dict[str, int]) -> None:
    """Old and its growth are the larger of both."""
    grown = resources.nonzero(resources.add(old, resources.growth(new, old)))
    assert grown == resources.nonzero(resources.larger(new, old))
    assert resources.growth(new, new) == {}


def amount_or_refusal(value: object) -> int | str:
    try:
        return parse(value)
    except QuantityError as error:
        return str(error)


hostile = (
    st.text(max_size=700)
    | st.text("0123456789.+-eEinumkKMGTP_ ", max_size=60)
    | st.text("0123456789eE+-", max_size=40)
    | st.integers()
    | st.floats()
    | st.none()
    | st.booleans()
    | st.binary()
    | st.lists(st.integers())
)


@laws
@given(hostile)
def test_whatever_comes_is_an_amount_or_a_quantity_error(value: object) -> None:
    """Nothing else is raised, nothing is beyond the range, the message is one short line."""
    answer = amount_or_refusal(value)
    if isinstance(answer, str):
        assert len(answer) < 200
        assert "\n" not in answer
    else:
        assert abs(answer) <= MAX


def test_a_thousand_hostile_texts_take_no_time() -> None:
    """Each under 5 ms of this thread's own time, the best of three."""
    chance = random.Random(10)
    pool = "0123456789" * 3 + ".+-eEinumkKMGTP_"
    for _ in range(1000):
        text = "".join(chance.choices(pool, k=chance.choice((8, 40, 511, 5000))))
        took = []
        while not took or (min(took) > 0.005 and len(took) < 3):
            before = time.thread_time()
            amount_or_refusal(text)
            took.append(time.thread_time() - before)
        assert min(took) < 0.005, text


# -- Kubernetes itself: kubectl reads and writes a quota's quantities with resource.Quantity, and needs no server -----


def read_by_kubectl(texts: list[str]) -> list[str] | None:
    """How kubectl writes these quantities, None if one of them is none."""
    hard = ",".join(f"example.com/r{index}={text}" for index, text in enumerate(texts))
    program = kubectl()
    assert program is not None
    command = [program, "create", "quota", "q", f"--hard={hard}", "--dry-run=client", "-o", "json"]
    home = {"HOME": "/nonexistent", "KUBECONFIG": "/dev/null", "PATH": str(program.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=home)
    if done.returncode:
        assert "quantit" in done.stderr, done.stderr
        return None
    written = json.loads(done.stdout)["spec"]["hard"]
    return [written[f"example.com/r{index}"] for index in range(len(texts))]


def some_texts(chance: random.Random, count: int) -> list[str]:
    """Up to 18 digits or many: between, Kubernetes' 64-bit path overflows in ways that differ by version."""

    def number(*lengths: int) -> str:
        return "".join(chance.choices("0123456789", k=chance.choice(lengths)))

    made = []
    for _ in range(count):
        text = chance.choice(["", "", "+", "-"]) + number(0, 1, 2, 3, 5, 9)
        if chance.random() < 0.5:
            text += "." + number(0, 1, 2, 4, 6, 9, 25)
        exponent = chance.choice("eE") + chance.choice(["", "+", "-"]) + str(chance.randrange(12))
        made.append(text + chance.choice([*FACTORS, exponent]))
    return [text for text in made if text]


@pytest.mark.kubectl
def test_kubectl_reads_and_writes_them_the_same_way() -> None:
    """Two thousand texts, with those of no digits; what kubectl echoes as it came is compared by amount."""
    good = []
    bad = []
    for text in some_texts(random.Random(1), 2000):
        try:
            good.append((text, *parse_with_format(text)))
        except QuantityError as error:
            bad += [] if "beyond" in str(error) else [text]
    for start in range(0, len(good), 250):
        part = good[start : start + 250]
        for (text, nano, fmt), shown in zip(part, read_by_kubectl([text for text, _, _ in part]) or [], strict=True):
            assert shown == canonical(nano, fmt) or (shown == text and parse(shown) == nano), text
    assert bad
    assert [text for text in bad[:10] if read_by_kubectl([text]) is not None] == []


@pytest.mark.kubectl
@pytest.mark.parametrize(
    "text", ["1K", "1ki", "1e", "1_000", "\uff14", "NaN", "inf", "1 Gi", "--1", "1.2.3", "Ei", "1e+-5"]
)
def test_kubectl_refuses_them_too(text: str) -> None:
    """The traps of Python's own int() and float() are none of Kubernetes'."""
    assert read_by_kubectl([text]) is None
    with pytest.raises(QuantityError):
        parse(text)
