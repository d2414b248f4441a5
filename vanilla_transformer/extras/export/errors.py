"""The error of models that cannot be converted or exported."""


class ConversionError(ValueError):
    """A model of an unknown type, or one that another system cannot express exactly."""
