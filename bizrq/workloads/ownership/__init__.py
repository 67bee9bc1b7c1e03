"""Who pays for a pod, a ReplicaSet, a Job or a claim, since when and until when.

`payers.paid_by` names the group and the reason. `lives` says when a pod is live, `waiting` whether its controller waits
for one that is being deleted, `overlap` which pods are free during a rollout, and `charge` what one slot is charged.
All of it is pure: plain values come in, nothing is read, and the caller passes the time. `docs/ownership.md` has
the rules in words.
"""
