"""Our kinds answer to no name of Kubernetes or of a common add-on: `kubectl get quota` means ResourceQuota.

kubectl takes a word for a plural, a singular, a short name or a category, and a category wins over a short name.
"""

from __future__ import annotations

from typing import Any

import pytest

import crds

#: All plurals, singulars, short names and categories of Kubernetes; of add-ons that run where quotas do the short names
#: and categories, and the plurals that speak of quota, budget or cost. Listed by hand.
_OTHERS = {
    "Kubernetes": (
        "all api-extensions apiservice apiservices binding bindings certificatesigningrequest "
        "certificatesigningrequests clusterrole clusterrolebinding clusterrolebindings clusterroles cm "
        "componentstatus componentstatuses configmap configmaps controllerrevision controllerrevisions crd "
        "crds cronjob cronjobs cs csidriver csidrivers csinode csinodes csistoragecapacities csr "
        "customresourcedefinition customresourcedefinitions daemonset daemonsets deploy deployment "
        "deployments deviceclass deviceclasses ds endpoints endpointslice endpointslices ep ev event events "
        "flowschema flowschemas horizontalpodautoscaler horizontalpodautoscalers hpa ing ingress ingressclass "
        "ingressclasses ingresses ip ipaddress ipaddresses job jobs lease leases limitrange limitranges "
        "limits mutatingwebhookconfiguration mutatingwebhookconfigurations namespace namespaces netpol "
        "networkpolicies networkpolicy no node nodes ns pc pdb persistentvolume persistentvolumeclaim "
        "persistentvolumeclaims persistentvolumes po pod poddisruptionbudget poddisruptionbudgets pods "
        "podtemplate podtemplates priorityclass priorityclasses prioritylevelconfiguration "
        "prioritylevelconfigurations pv pvc quota rc replicaset replicasets replicationcontroller "
        "replicationcontrollers resourceclaim resourceclaims resourceclaimtemplate resourceclaimtemplates "
        "resourcequota resourcequotas resourceslice resourceslices role rolebinding rolebindings roles rs "
        "runtimeclass runtimeclasses sa sc secret secrets service serviceaccount serviceaccounts services "
        "statefulset statefulsets storageclass storageclasses sts svc validatingadmissionpolicies "
        "validatingadmissionpolicy validatingadmissionpolicybinding validatingadmissionpolicybindings "
        "validatingwebhookconfiguration validatingwebhookconfigurations vac volumeattachment "
        "volumeattachments volumeattributesclass volumeattributesclasses workload workloads"
    ),
    "Argo": "app applications apps appproj appset clusterwftmpl cwf cwft eb es ro rollouts ar at wf wftmpl wftemplates",
    "Capsule": "tnt tenants grp gtr tr resourcepools quotaclaims resourcepoolclaims resourcepool",
    "cert-manager": "cert certs certificates cr crs challenges issuers cert-manager cert-manager-acme",
    "Cilium": "cep ciliumep cnp ccnp cid ciliumid cn cew ciliumpolicy cilium",
    "Cluster API": "cl ma md ms mhc cluster-api",
    "Crossplane": "crossplane managed claim composite xr xrd",
    "HAMi and Volcano": "vcjob vj q queue-v1beta1 podgroup-v1beta1 pg jf jt queue queues hyper quotas elasticquota eq",
    "HNC": "hns subns hnsa hncconfig hrq hierarchicalresourcequotas hierarchicalresourcequota",
    "Karpenter": "np nodepools nodeclaims nodeclaim ec2nc karpenter",
    "KEDA": "so sj ta scaledobjects scaledjobs",
    "Knative": "kservice ksvc rt rev cfg knative serving",
    "Koordinator": "eqp elasticquotaprofiles elasticquotas quotaprofile",
    "KubeRay and Kubeflow": "rayjobs rayclusters pytorchjobs tfjobs mpijobs isvc sklearn tj trainjobs profiles profile",
    "Kueue": "cq clusterqueues lq localqueues rf flavors resourceflavors wl ac cohorts cohort topo kueue",
    "KubeVirt and OpenShift": "vm vms vmi vmis crq clusterresourcequotas clusterquota aq acq applicationaware all",
    "OpenCost and Kubecost": "budgets budget budgetrules costs cost",
    "Prometheus": "prom pmon smon am promrule thanosrulers prometheus-operator",
    "Yunikorn and Run:ai": "projects project departments department queues-v2",
}


def _names() -> list[dict[str, Any]]:
    return [definition["spec"]["names"] for definition in crds.load()]


def _words(names: dict[str, Any]) -> list[str]:
    return [names["plural"], names["singular"], *names.get("shortNames", ()), *names.get("categories", ())]


@pytest.mark.parametrize("names", _names(), ids=lambda names: names["kind"])
def test_no_kind_answers_to_a_name_of_others(names: dict[str, Any]) -> None:
    theirs = {word for words in _OTHERS.values() for word in words.split()}
    assert not theirs.intersection(_words(names))


def test_every_kind_is_in_the_category_and_has_a_short_name_of_its_own() -> None:
    found = _names()
    assert all(names["categories"] == ["bizgroup"] for names in found)
    short = [name for names in found for name in names["shortNames"]]
    assert len(set(short)) == len(found)
    # `kubectl get bizrq NAME` fails where a category has the name of a short name.
    everything = [word for names in found for word in (names["plural"], names["singular"], *names["shortNames"])]
    assert len(set(everything)) == len(everything)
    assert "bizgroup" not in everything
