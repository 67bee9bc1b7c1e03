"""What a workload asks for: from an object as people write it to amounts by resource name.

`demand.counting.demand` is the one function that admission, the controller and the command line ask. It reads in this
order: `kinds` (which kind), `owners` (who pays), `pods.roles` and `special` (how many pods of which template),
`pods.podspec` (what one pod costs), `devices` (under which further names), `pods.surge` (pods that an update adds).
"""
