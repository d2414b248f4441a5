"""The error for models that cannot be converted or exported."""


class ConversionError(ValueError):
    """A model of an unknown type, or a model that another system cannot express exactly."""
