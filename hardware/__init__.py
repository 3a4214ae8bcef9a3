"""Ground floor: GPU profiles (datasheet numbers) and calibrations (fitted factors), as data with a schema.

Datasheet numbers live in the ``*.toml`` files beside this module and are read as :class:`~costmodel.hardware.profile.GpuProfile`.
Fitted factors never enter those files: they are a :class:`~costmodel.hardware.calibration.Calibration`.
"""
