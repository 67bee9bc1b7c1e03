"""What a workload asks for: from an object as people write it to amounts by resource name.

`counting.demand` is the one function that admission, the controller and the command line ask. It reads in this order:
`adapters` (which kind), `owners` (who pays), `roles` and `coded` (how many pods of which template), `podspec` (what one
pod costs), `hami`, `models` and `dra` (under which further names), `policies` (what is charged besides).
"""
