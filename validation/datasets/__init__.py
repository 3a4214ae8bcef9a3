"""Readers of measurements that other people made: typed columns in SI units, and the rules by which rows are left out.

- :mod:`~costmodel.validation.datasets.silicon`: kernel timings of the installed ``aiconfigurator-core``.
- :mod:`~costmodel.validation.datasets.end_to_end`: its rows of TTFT and TPOT, measured on serving engines.
- :mod:`~costmodel.validation.datasets.rtx4090`: layer timings and one served run on an RTX 4090.
- :mod:`~costmodel.validation.datasets.rules` and :mod:`~costmodel.validation.datasets.end_to_end_rules`: which rows are not
  fitted to, and why.

Nothing is copied: the files stay where their packages put them, and are read when asked for.
"""
