"""Models that several processes hold: spectra added up over them, masks of what lies in each. Nothing is gathered.

The core (`parts`, `ranks`) comes here when it meets a DTensor or DistributedDataParallel. Every process adds its own
shards' spectra to the others' and then searches for itself, in the same sums, so that all find the same cuts.
"""
