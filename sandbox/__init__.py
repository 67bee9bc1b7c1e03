"""A small Kubernetes API server in one process, for trying bizrq and testing it where no cluster is.

Real Kubernetes is what bizrq is for. The sandbox stands in for it as far as `bizrq up`, `make demo`, the tutorial, the
tests and kubectl (1.29 and later) in them go; `tests/contract` runs the same assertions on it and on a real API server.

It has
- create, get, list, update, patch (JSON, merge, strategic), delete, watch (bookmarks, 410, initial events),
  resourceVersion conflicts, generation, generateName, finalizers, dry run, pages, selectors;
- the subresources status, scale, binding, eviction (without budgets) and resize;
- custom resources: the schema keywords that our definitions use, defaults, pruning, CEL rules, printer columns, more
  than one version without conversion;
- validating webhooks over TLS: selectors, match conditions, timeouts, failure policies, asked again after a conflict;
- ValidatingAdmissionPolicies with params, match conditions, variables and messages; `authorizer` asks the stored RBAC
  for rights on resources;
- discovery, OpenAPI v3, tables with columns for pods, Deployments and custom resources;
- users: whoever has the token of its kubeconfig may do everything; users that a test adds may do what the stored RBAC
  allows; TokenReview, SubjectAccessReview, SelfSubjectAccessReview and SelfSubjectRulesReview answer by the same;
- stand-ins for the garbage collector, the scheduler, the kubelet, and the controllers of Deployments, Rollouts,
  ReplicaSets, ReplicationControllers, StatefulSets, DaemonSets, Jobs and TFJobs, on a clock that can run fast.

It leaves out, and says so with 404, 415, 422 or 501 instead of guessing
- server-side apply and managed fields: bizrq and the tutorial send patches;
- mutating webhooks and mutating policies: bizrq changes no object of others;
- protobuf but for the few bodies that kubectl sends no other way (protobuf.py), OpenAPI v2, aggregated discovery:
  kubectl 1.29 and later and our client do without;
- schema keywords, CEL functions and printer column paths that no definition of ours or of the tests uses;
- schemas of built-in kinds: builtins.py checks the fields that quotas, controllers and kubectl depend on;
- conversion between versions, history before the start, persistence: it forgets everything when it ends;
- logs, exec, attach, port-forward, tokens, metrics: its pods run nothing.
Only a real API server proves how another kind's own controller or schema behaves; the tests marked `real` do that.

It needs the extra `bizrq[sandbox]`, for CEL (docs/decisions/0007). The image for clusters does without it.
"""
