"""Compiled edits: the edits of a request, checked against each other and summed on the host.

Reads recordings (:mod:`sglang_lp.edits.recording`) and knows no batch and no device.
"""
