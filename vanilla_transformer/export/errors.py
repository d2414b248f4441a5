"""What cannot be converted or exported."""


class ConversionError(ValueError):
    """A model that another system cannot express exactly, or that is of a type we do not know."""
