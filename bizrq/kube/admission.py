"""The kinds by which a cluster takes an admission webhook or an admission policy."""

from __future__ import annotations

from typing import Final

from bizrq.kube.client import Resource

_GROUP: Final = "admissionregistration.k8s.io"

REGISTRATIONS: Final = Resource(
    _GROUP, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False
)
POLICIES: Final = Resource(_GROUP, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False)
POLICY_BINDINGS: Final = Resource(
    _GROUP, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", namespaced=False
)
