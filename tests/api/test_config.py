"""How a configuration is read, and the messages for invalid ones."""

from __future__ import annotations

import re

import pytest

from bizrq.api.config import Configuration, ConfigurationError
from bizrq.builtin import builtin_catalog, builtin_registry, shared_devices
from bizrq.settings import load, settings
from bizrq.units.names import UnknownResource, normalize
from bizrq.workloads.config import CountingConfig, CountsAs, DeviceClassMapping, GpuModel, Hami

ASCEND = tuple(device for device in shared_devices() if device.vendor == "ascend")


def test_an_empty_configuration_is_the_default():
    assert settings({}).counting == settings(None).counting == CountingConfig(kinds=builtin_registry().countable)


def test_the_catalog_without_a_configuration_is_that_of_the_default_settings():
    assert builtin_catalog() == settings({}).catalog
    assert builtin_catalog().kinds == {adapter.resource for adapter in builtin_registry().charged}


@pytest.mark.parametrize(
    "kind", ["inferenceservices.serving.kserve.io", "services.serving.knative.dev", "resourceclaims.resource.k8s.io"]
)
def test_count_has_no_kind_that_is_not_charged(kind: str):
    with pytest.raises(UnknownResource):
        normalize(f"count/{kind}", builtin_catalog())


def test_every_key_is_read():
    knobs = settings(
        {
            "countAdminAccess": True,
            "strictModels": True,
            "surge": "count",
            "suspended": "reserve",
            "terminal": "release",
            "elastic": "max",
            "gpuModels": {"A100": {"memoryMiB": 40960, "aliases": ["NVIDIA-A100"]}},
            "gpuResources": ["x.com/gpu"],
            "deviceClassMappings": {"a100.x.com": {"resource": "nvidia.com/gpu", "model": "A100"}},
            "hami": {"enabled": True, "deviceSplitCount": 5, "vendors": ["ascend"]},
            "countsAs": [{"annotation": "gpu-fraction", "card": "nvidia.com/gpu", "times": "gpu-fraction-num-devices"}],
        }
    ).counting
    assert knobs == CountingConfig(
        True, True, "count", "reserve", "release", "max",
        {"A100": GpuModel(("NVIDIA-A100",), 40960)}, ("x.com/gpu",),
        {"a100.x.com": DeviceClassMapping("nvidia.com/gpu", "A100")}, Hami(True, 5, devices=ASCEND),
        (CountsAs("nvidia.com/gpu", annotation="gpu-fraction", times="gpu-fraction-num-devices"),),
        kinds=builtin_registry().countable,
    )  # fmt: skip
    assert knobs.models_by_alias == {"nvidia-a100": "A100", "a100": "A100"}
    assert knobs.catalog.classes == {"a100.x.com"}


def test_rights_are_checked_only_where_the_configuration_says_so():
    assert (settings({}).rights.use, settings({}).rights.grant) == (False, False)
    asked = settings({"rights": {"use": True}}).rights
    assert (asked.use, asked.grant) == (True, False)


def test_the_default_keeps_statements_for_thirteen_months_of_days():
    assert [settings(said).keep_statements for said in ({}, {"keepStatements": 0}, {"keepStatements": 7})] == [
        400,
        0,
        7,
    ]


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"keepStatements": -1}, "keepStatements: -1 is out of range: write a number of at least 0"),
        ({"rights": {"uses": True}}, "rights.uses: no such key, did you mean use?"),
        ({"rights": {"grant": "yes"}}, "rights.grant: 'yes' is of the wrong type: write true or false"),
        ([], "must be a map of keys to values"),
        ({"spec": 3}, "spec: no such key, there are: adapters, controllers, countAdminAccess, "),
        ({"hami": {"x": 3}}, "hami.x: no such key, there are: deviceSplitCount, enabled, vendors"),
        ({"strictModel": True}, "strictModel: no such key, did you mean strictModels?"),
        ({"strictModels": "yes"}, "strictModels: 'yes' is of the wrong type: write true or false"),
        ({"surge": "maybe"}, "surge: 'maybe' is not allowed: write 'ignore' or 'count'"),
        ({"gpuModels": ["A100"]}, "gpuModels: ['A100'] is of the wrong type: write a map of keys to values"),
        ({"gpuModels": {"A100": {"memory": 1}}}, "gpuModels.A100.memory: no such key, did you mean memoryMiB?"),
        (
            {"gpuModels": {"A100": {"memoryMiB": -1}}},
            "gpuModels.A100.memoryMiB: -1 is out of range: write a number of at least 0",
        ),
        ({"gpuResources": "x.com/gpu"}, "gpuResources: 'x.com/gpu' is of the wrong type: write a list"),
        ({"gpuResources": ["gpu"]}, "gpu: not a device"),
        ({"deviceClassMappings": {"a": {"model": "A100"}}}, "deviceClassMappings.a.resource: is required"),
        ({"hami": {"deviceSplitCount": 0}}, "hami.deviceSplitCount: 0 is out of range: write a number of at least 1"),
        (
            {"hami": {"vendors": ["higon"]}},
            "hami.vendors.0: 'higon' is not a vendor that HAMi serves, did you mean hygon?",
        ),
        ({"hami": {"vendors": ["x"]}}, "write one of amd, ascend, aws, biren, cambricon"),
        ({"countsAs": [{"annotation": "gpu-fraction"}]}, "countsAs.0.card: is required"),
        ({"countsAs": [{"card": "nvidia.com/gpu"}]}, "countsAs.0: give either resource or annotation"),
        ({"countsAs": [{"resourc": "x", "card": "a/b"}]}, "countsAs.0.resourc: no such key, did you mean resource?"),
        ({"adapters": [{"match": {}}]}, "adapters[0].match.versions: name at least one version"),
        ({"exemptNamespace": []}, "exemptNamespace: no such key, did you mean exemptNamespaces?"),
        ({"exemptNamespaces": "a"}, "exemptNamespaces: 'a' is of the wrong type: write a list"),
        (
            {"exemptNamespaces": ["a", "Team_A"]},
            "exemptNamespaces.1: 'Team_A' is no name of a namespace: write at most 63 small letters, digits or '-'",
        ),
        ({"exemptNamespaces": ["a" * 64]}, "exemptNamespaces.0: "),
        ({"exemptNamespaces": [""]}, "exemptNamespaces.0: '' is no name of a namespace"),
        ({"managedNamespaces": ["a"]}, "managedNamespaces: ['a'] is of the wrong type: write a map of keys to values"),
        (
            {"managedNamespaces": {"matchLabel": {"a": "b"}}},
            "managedNamespaces: matchLabel: no such field: write matchLabels or matchExpressions",
        ),
        (
            {"managedNamespaces": {"matchExpressions": [{"key": "a", "operator": "Is"}]}},
            "managedNamespaces: matchExpressions[0].operator: 'Is' is none of In, NotIn, Exists, DoesNotExist",
        ),
        (
            {"managedNamespaces": {"matchLabels": {"a": True}}},
            "managedNamespaces: matchLabels.a: 'True' is no label value",
        ),
        ({"hami": {"enabled": 1}}, "hami.enabled: 1 is of the wrong type: write true or false"),
    ],
)
def test_an_invalid_key_is_rejected(knobs, words):
    with pytest.raises(ConfigurationError) as caught:
        settings(knobs)
    assert words in str(caught.value)


#: Values that no key takes, or few.
ODD = [None, True, -1, 2**40, 1.5, "", "x", "\x1b[31m", [], [None], [[]], {}, {"x": {}}, {"": 1}]
_OF_LIBRARIES = re.compile(r"(?i)input should|value error|valid (string|integer|dictionary|list|boolean)|pydantic")


@pytest.mark.parametrize("key", sorted(field.alias or name for name, field in Configuration.model_fields.items()))
@pytest.mark.parametrize("value", ODD, ids=repr)
def test_no_message_is_in_the_words_of_a_library(key: str, value: object) -> None:
    said = ""
    try:
        settings({key: value})
    except ConfigurationError as error:
        said = str(error)
    assert not _OF_LIBRARIES.search(said)
    assert said.isprintable()


def test_an_invalid_configuration_file_is_named_in_the_error(tmp_path):
    file = tmp_path / "config.yaml"
    with pytest.raises(ConfigurationError, match="No such file"):
        load(file)
    for text, words in [
        ("{", "not YAML"),
        ("a: 1\n---\nb: 2", "2 documents: write one"),
        ("surg: x", "did you mean surge?"),
    ]:
        file.write_text(text)
        with pytest.raises(ConfigurationError) as caught:
            load(file)
        assert str(caught.value).startswith(f"{file}: ")
        assert words in str(caught.value)
    file.write_text("")
    assert load(file) == load(None)
