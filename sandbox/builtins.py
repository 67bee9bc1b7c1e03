"""Fill in and validate the built-in kinds, as far as quotas, controllers and kubectl depend on it.

It decides defaults and refusals, in Kubernetes' words. Pure. Built-in kinds have no schema here: unknown fields are
kept, not dropped.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from bizrq.units import quantity
from sandbox.kinds import Resource
from sandbox.selectors import (
    DNS_LABEL_TEXT,
    DNS_SUBDOMAIN_TEXT,
    compile_selector,
    dns_label,
    dns_subdomain,
    label_key_problem,
    label_value_problem,
)
from sandbox.status import (
    ApiError,
    FieldError,
    bad_request,
    forbidden_field,
    invalid_value,
    required,
    too_long,
    unsupported,
)

Json = dict[str, Any]
Errors = list[FieldError]

_PATH_NAMES = frozenset({"roles", "rolebindings", "clusterroles", "clusterrolebindings"})
_LABEL_NAMES = frozenset({"namespaces", "services"})
_TEMPLATED = frozenset({"deployments", "replicasets", "statefulsets", "daemonsets"})
#: Kinds whose pod template stands in `spec.template`, besides those of the groups apps and batch.
_TEMPLATED_CORE = frozenset({"replicationcontrollers"})
_ANNOTATIONS = 256 * 1024
NEGATIVE = "must be greater than or equal to 0"


def validate_metadata(resource: Resource, obj: Json) -> Errors:
    """Validate names, labels, annotations, finalizers and owners (apimachinery: ValidateObjectMeta)."""
    errors: Errors = []
    meta = obj["metadata"]
    name = meta.get("name") or ""
    prefix = meta.get("generateName")
    if prefix and not dns_subdomain(prefix.removesuffix("-") + "a"):
        errors.append(invalid_value("metadata.generateName", prefix, DNS_SUBDOMAIN_TEXT))
    if not name:
        errors.append(required("metadata.name", "name or generateName is required"))
    elif resource.group.startswith("rbac.") and resource.plural in _PATH_NAMES:
        if name in (".", "..") or "/" in name or "%" in name:
            errors.append(invalid_value("metadata.name", name, "may not contain '/' or '%'"))
    elif resource.plural in _LABEL_NAMES and not resource.group:
        if not dns_label(name):
            errors.append(invalid_value("metadata.name", name, DNS_LABEL_TEXT))
    elif not dns_subdomain(name):
        text = DNS_SUBDOMAIN_TEXT if len(name) <= 253 else "must be no more than 253 bytes"
        errors.append(invalid_value("metadata.name", name, text))
    errors.extend(_labels(meta.get("labels"), "metadata.labels"))
    for key in meta.get("annotations") or {}:
        if problem := label_key_problem(key.lower()):
            errors.append(invalid_value("metadata.annotations", key, problem))
    if sum(len(key) + len(value) for key, value in (meta.get("annotations") or {}).items()) > _ANNOTATIONS:
        errors.append(too_long("metadata.annotations", _ANNOTATIONS))
    for index, owner in enumerate(meta.get("ownerReferences") or ()):
        errors.extend(
            required(f"metadata.ownerReferences[{index}].{field}", "must not be empty")
            for field in ("apiVersion", "kind", "name", "uid")
            if not owner.get(field)
        )
    controllers = [owner for owner in meta.get("ownerReferences") or () if owner.get("controller")]
    if len(controllers) > 1:
        errors.append(
            invalid_value(
                "metadata.ownerReferences",
                len(controllers),
                "Only one reference can have Controller set to true",
            )
        )
    return errors


def _labels(labels: Json | None, path: str) -> Errors:
    errors: Errors = []
    for key, value in (labels or {}).items():
        if problem := label_key_problem(key):
            errors.append(invalid_value(path, key, problem))
        if problem := label_value_problem(value):
            errors.append(invalid_value(path, value, problem))
    return errors


_DEFAULTS: dict[tuple[str, str], Json] = {
    ("apps", "deployments"): {"replicas": 1, "progressDeadlineSeconds": 600, "revisionHistoryLimit": 10},
    ("apps", "replicasets"): {"replicas": 1},
    ("", "replicationcontrollers"): {"replicas": 1},
    ("apps", "statefulsets"): {
        "replicas": 1,
        "podManagementPolicy": "OrderedReady",
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
        "revisionHistoryLimit": 10,
        "serviceName": "",
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
    },
    ("apps", "daemonsets"): {
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
        "revisionHistoryLimit": 10,
    },
    ("batch", "jobs"): {
        "backoffLimit": 6,
        "completionMode": "NonIndexed",
        "suspend": False,
        "manualSelector": False,
        "podReplacementPolicy": "TerminatingOrFailed",
    },
    ("batch", "cronjobs"): {"concurrencyPolicy": "Allow", "suspend": False},
    ("", "services"): {"type": "ClusterIP", "sessionAffinity": "None"},
}


def fill_defaults(resource: Resource, obj: Json) -> None:
    """Fill in a built-in kind's defaults, in place; `obj` is a fresh copy down to `spec`."""
    if resource.custom is not None:
        return
    name = (resource.group, resource.plural)
    if name == ("", "namespaces"):
        spec = obj.setdefault("spec", {})
        spec.setdefault("finalizers", ["kubernetes"])
        labels = obj["metadata"].setdefault("labels", {})
        labels["kubernetes.io/metadata.name"] = obj["metadata"].get("name", "")
    if not isinstance(obj.get("spec"), dict):
        return
    obj["spec"] = spec = dict(obj["spec"])
    for field, default in _DEFAULTS.get(name, {}).items():
        spec.setdefault(field, copy.deepcopy(default))
    match name:
        case ("apps", "deployments"):
            spec["strategy"] = _strategy(spec.get("strategy") or {})
        case ("batch", "jobs") if "parallelism" not in spec:
            spec["parallelism"] = 1
            spec.setdefault("completions", 1)
        case ("", "pods"):
            _pod_defaults(spec)
            obj.setdefault("status", {})
        case ("", "replicationcontrollers") if not spec.get("selector"):
            spec["selector"] = dict(_template_labels(spec))
    template = spec.get("template")
    if _has_template(resource) and isinstance(template, dict) and isinstance(template.get("spec"), dict):
        spec["template"] = {**template, "spec": _template_defaults(template["spec"])}


def _has_template(resource: Resource) -> bool:
    """Return True where `spec.template` is a pod template."""
    return resource.group in ("apps", "batch") or (not resource.group and resource.plural in _TEMPLATED_CORE)


def _template_labels(spec: Json) -> Json:
    return ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}


def _strategy(given: Json) -> Json:
    """Return a Deployment's strategy with its defaults."""
    strategy: Json = {"type": "RollingUpdate", **given}
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.get("rollingUpdate") or {}
        strategy["rollingUpdate"] = {"maxUnavailable": "25%", "maxSurge": "25%", **rolling}
    return strategy


def _template_defaults(given: Json) -> Json:
    """Return the pod spec of a template with its defaults."""
    pod = {"restartPolicy": "Always", **given}
    _common_pod_defaults(pod)
    for field in ("containers", "initContainers"):
        if isinstance(pod.get(field), list):
            pod[field] = [_container_basics(item) if isinstance(item, dict) else item for item in pod[field]]
    return pod


def _common_pod_defaults(spec: Json) -> None:
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    spec.setdefault("terminationGracePeriodSeconds", 30)


def _pod_defaults(spec: Json) -> None:
    """Fill in a pod's defaults; a limit without a request becomes the request, in pods but not in templates."""
    spec.setdefault("restartPolicy", "Always")
    _common_pod_defaults(spec)
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("priority", 0)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    tolerated = {toleration.get("key") for toleration in spec.get("tolerations") or ()}
    spec["tolerations"] = [
        *(spec.get("tolerations") or ()),
        *(
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
            if key not in tolerated
        ),
    ]
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("serviceAccount", spec["serviceAccountName"])
    for field in ("containers", "initContainers"):
        containers = spec.get(field)
        if not isinstance(containers, list):
            continue
        spec[field] = [_container_defaults(item) if isinstance(item, dict) else item for item in containers]


def _container_basics(container: Json) -> Json:
    image = container.get("image")
    tag = image.rpartition("/")[2].partition(":")[2] if isinstance(image, str) else ""
    latest = tag in ("", "latest") and "@" not in str(image)
    return {
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always" if latest else "IfNotPresent",
        **container,
    }


def _container_defaults(container: Json) -> Json:
    """Fill in a container of a pod; a limit without a request becomes the request."""
    container = _container_basics(container)
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, dict) else None
    if not isinstance(resources, dict) or not isinstance(limits, dict):
        return container
    requests = {**limits, **(resources.get("requests") or {})}
    return {**container, "resources": {**resources, "requests": requests}}


def check_types(resource: Resource, obj: Json) -> None:
    """Refuse with 400 what Go cannot decode."""
    if resource.custom is not None:
        return
    spec = obj.get("spec")
    if spec is not None and not isinstance(spec, dict):
        raise _undecodable(resource, "spec", spec, "object")
    for field in ("replicas", "parallelism", "completions", "backoffLimit"):
        value = (spec or {}).get(field)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise _undecodable(resource, f"spec.{field}", value, "int32")
    for path, pod in _pod_specs(resource, obj):
        if not isinstance(pod, dict):
            raise _undecodable(resource, path, pod, "object")
        for field in ("containers", "initContainers"):
            containers = pod.get(field)
            if containers is not None and (
                not isinstance(containers, list) or not all(isinstance(item, dict) for item in containers)
            ):
                raise _undecodable(resource, f"{path}.{field}", containers, "[]v1.Container")
            for container in containers or ():
                _check_resources_type(resource, container, f"{path}.{field}.resources")


def _check_resources_type(resource: Resource, container: Json, path: str) -> None:
    resources = container.get("resources")
    if resources is None:
        return
    if not isinstance(resources, dict):
        raise _undecodable(resource, path, resources, "v1.ResourceRequirements")
    for field in ("limits", "requests"):
        amounts = resources.get(field)
        if amounts is None:
            continue
        if not isinstance(amounts, dict):
            raise _undecodable(resource, f"{path}.{field}", amounts, "v1.ResourceList")
        for amount in amounts.values():
            try:
                quantity.parse(amount)
            except quantity.QuantityError:
                raise bad_request(
                    f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
                    f"quantities must match the regular expression "
                    f"'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                ) from None


def _undecodable(resource: Resource, path: str, value: object, wanted: str) -> ApiError:
    kind = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    struct = resource.kind + ("Spec" if path != "spec" else "")
    return bad_request(
        f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: json: cannot '
        f"unmarshal {kind.get(type(value), 'null')} into Go struct field {struct}.{path} of type {wanted}"
    )


def _pod_specs(resource: Resource, obj: Json) -> Iterator[tuple[str, Any]]:
    spec = obj.get("spec") or {}
    if (resource.group, resource.plural) == ("", "pods"):
        yield "spec", spec
        return
    path = "spec"
    if (resource.group, resource.plural) == ("batch", "cronjobs"):
        template = spec.get("jobTemplate")
        spec = (template.get("spec") if isinstance(template, dict) else None) or {}
        path = "spec.jobTemplate.spec"
    if _has_template(resource) and isinstance(spec.get("template"), dict):
        pod = spec["template"].get("spec")
        if pod is not None:
            yield f"{path}.template.spec", pod


def validate(resource: Resource, obj: Json, old: Json | None) -> Errors:
    """Return the errors of Kubernetes' own validation in the fields that matter here."""
    if resource.custom is not None:
        return []
    errors: Errors = []
    spec = obj.get("spec") or {}
    for field in ("replicas", "parallelism", "completions", "backoffLimit", "minReadySeconds"):
        value = spec.get(field)
        if isinstance(value, int) and value < 0:
            errors.append(invalid_value(f"spec.{field}", value, NEGATIVE))
    for path, pod in _pod_specs(resource, obj):
        errors.extend(_validate_pod(resource, pod, path))
    if resource.group == "apps" and resource.plural in _TEMPLATED:
        errors.extend(_validate_selector(obj, old))
    if (resource.group, resource.plural) == ("", "replicationcontrollers"):
        errors.extend(_validate_replication_controller(spec))
    if (resource.group, resource.plural) == ("batch", "jobs"):
        errors.extend(_validate_job(obj, old))
    if (resource.group, resource.plural) == ("", "pods") and old is not None:
        errors.extend(_validate_pod_update(obj, old))
    if (resource.group, resource.plural) == ("apps", "statefulsets") and old is not None:
        kept = {"replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit", "minReadySeconds",
                "persistentVolumeClaimRetentionPolicy"}  # fmt: skip
        if _without(spec, kept) != _without(old.get("spec") or {}, kept):
            errors.append(
                forbidden_field(
                    "spec",
                    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "
                    "'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and "
                    "'minReadySeconds' are forbidden",
                )
            )
    return errors


def _without(spec: Json, names: set[str]) -> Json:
    return {key: value for key, value in spec.items() if key not in names}


def _validate_pod(resource: Resource, pod: Json, path: str) -> Errors:
    errors: Errors = []
    if not pod.get("containers"):
        errors.append(required(f"{path}.containers"))
    for field in ("initContainers", "containers"):
        for index, container in enumerate(pod.get(field) or ()):
            at = f"{path}.{field}[{index}]"
            if not container.get("name"):
                errors.append(required(f"{at}.name"))
            elif not dns_label(container["name"]):
                errors.append(invalid_value(f"{at}.name", container["name"], DNS_LABEL_TEXT))
            if not container.get("image"):
                errors.append(required(f"{at}.image"))
            errors.extend(_validate_amounts(container.get("resources") or {}, f"{at}.resources"))
    policy = pod.get("restartPolicy", "Always")
    if policy not in ("Always", "OnFailure", "Never"):
        errors.append(unsupported(f"{path}.restartPolicy", policy, ("Always", "OnFailure", "Never")))
    elif (resource.group == "apps" or resource.plural in _TEMPLATED_CORE) and policy != "Always":
        errors.append(unsupported(f"{path}.restartPolicy", policy, ("Always",)))
    elif resource.group == "batch" and policy == "Always":
        errors.append(
            FieldError(
                "FieldValueRequired",
                f"{path}.restartPolicy",
                'Required value: valid values: "OnFailure", "Never"',
            )
        )
    return errors


def _validate_amounts(resources: Json, path: str) -> Errors:
    errors: Errors = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            at = f"{path}.{field}[{name}]"
            nano = quantity.parse(amount)
            if nano < 0:
                errors.append(invalid_value(at, amount, NEGATIVE))
            whole = "/" in name or name.startswith("hugepages-")
            if whole and nano % quantity.NANO:
                errors.append(invalid_value(at, amount, "must be an integer"))
    for name, amount in requests.items():
        limit = limits.get(name)
        if limit is None:
            if "/" in name:
                errors.append(required(f"{path}.limits", "Limit must be set for non overcommitable resources"))
            continue
        more, most = quantity.parse(amount), quantity.parse(limit)
        if "/" in name and more != most:
            errors.append(invalid_value(f"{path}.requests", amount, f"must be equal to {name} limit of {limit}"))
        elif more > most:
            errors.append(
                invalid_value(f"{path}.requests", amount, f"must be less than or equal to {name} limit of {limit}")
            )
    return errors


def _validate_selector(obj: Json, old: Json | None) -> Errors:
    spec = obj.get("spec") or {}
    selector = spec.get("selector")
    if selector is None:
        return [required("spec.selector")]
    errors: Errors = []
    labels = _template_labels(spec)
    matcher = compile_selector(selector)
    if matcher is None:
        errors.append(invalid_value("spec.selector", selector, "empty selector is invalid for deployment"))
    elif not matcher(labels):
        errors.append(
            invalid_value("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")
        )
    errors.extend(_labels(labels, "spec.template.metadata.labels"))
    if old is not None and selector != (old.get("spec") or {}).get("selector"):
        errors.append(invalid_value("spec.selector", selector, "field is immutable"))
    return errors


def _validate_replication_controller(spec: Json) -> Errors:
    """Return the errors of a plain selector, which may change (kubernetes: ValidateReplicationControllerSpec)."""
    selector, labels = spec.get("selector") or {}, _template_labels(spec)
    if not selector:
        return [required("spec.selector")]
    if not isinstance(spec.get("template"), dict):
        return [required("spec.template")]
    if not selector.items() <= labels.items():
        text = "`selector` does not match template `labels`"
        return [invalid_value("spec.template.metadata.labels", labels, text)]
    return _labels(labels, "spec.template.metadata.labels")


def _validate_job(obj: Json, old: Json | None) -> Errors:
    if old is None:
        return []
    spec, before = obj.get("spec") or {}, old.get("spec") or {}
    errors: Errors = []
    suspended = before.get("suspend") and not (old.get("status") or {}).get("startTime")
    if spec.get("template") != before.get("template") and not suspended:
        errors.append(invalid_value("spec.template", spec.get("template"), "field is immutable"))
    for field in ("selector", "completionMode"):
        if spec.get(field) != before.get(field):
            errors.append(invalid_value(f"spec.{field}", spec.get(field), "field is immutable"))
    indexed = spec.get("completionMode") == "Indexed" and spec.get("completions") == spec.get("parallelism")
    if spec.get("completions") != before.get("completions") and not indexed:
        errors.append(invalid_value("spec.completions", spec.get("completions"), "field is immutable"))
    return errors


def _validate_pod_update(obj: Json, old: Json) -> Errors:
    changeable = {"activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates"}
    if (old.get("spec") or {}).get("schedulingGates"):
        changeable |= _narrowed(obj.get("spec") or {}, old["spec"])

    def fixed(spec: Json) -> Json:
        rest = _without(spec, changeable)
        for field in ("containers", "initContainers"):
            rest[field] = [_without(container, {"image"}) for container in spec.get(field) or ()]
        return rest

    if fixed(obj.get("spec") or {}) == fixed(old.get("spec") or {}):
        return []
    return [
        forbidden_field(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
            "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
            "previously negative)",
        )
    ]


def _narrowed(spec: Json, before: Json) -> set[str]:
    """Return the fields by which a pod that waits for a scheduling gate may be given fewer nodes than before.

    Kubernetes also lets terms of a node affinity that is there grow; here only a first one may come.
    """
    selector, affinity = spec.get("nodeSelector") or {}, spec.get("affinity") or {}
    earlier = before.get("affinity") or {}
    narrowed = {"nodeSelector"} if (before.get("nodeSelector") or {}).items() <= selector.items() else set[str]()
    if "nodeAffinity" not in earlier and _without(affinity, {"nodeAffinity"}) == earlier:
        narrowed.add("affinity")
    return narrowed


def job_selector(obj: Json) -> None:
    """Give a new Job the selector and pod labels that Kubernetes generates for it, in place."""
    spec = obj.get("spec")
    if not isinstance(spec, dict) or spec.get("manualSelector"):
        return
    uid, name = obj["metadata"]["uid"], obj["metadata"]["name"]
    template = dict(spec.get("template") or {})
    meta = dict(template.get("metadata") or {})
    meta["labels"] = {
        **(meta.get("labels") or {}),
        "controller-uid": uid,
        "job-name": name,
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
    }
    template["metadata"] = meta
    spec["template"] = template
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    if not obj["metadata"].get("labels"):
        obj["metadata"]["labels"] = dict(meta["labels"])


def pod_status(obj: Json) -> Json:
    """Return the status of a new pod."""
    classes = {"requests": 0, "limits": 0}
    guaranteed = True
    for container in (obj.get("spec") or {}).get("containers") or ():
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        classes["limits"] += sum(name in ("cpu", "memory") for name in limits)
        classes["requests"] += sum(name in ("cpu", "memory") for name in requests)
        guaranteed &= {"cpu", "memory"} <= limits.keys() and all(
            requests.get(n) == limits[n] for n in ("cpu", "memory")
        )
    if not classes["limits"] and not classes["requests"]:
        qos = "BestEffort"
    else:
        qos = "Guaranteed" if guaranteed else "Burstable"
    return {"phase": "Pending", "qosClass": qos}
