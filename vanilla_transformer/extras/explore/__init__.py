"""A page on which a model computes before the reader's eyes: every number of it, in the paper's order."""

from vanilla_transformer.extras.explore.page import ExploreError, push_page, write_model_page, write_page

__all__ = ["ExploreError", "push_page", "write_model_page", "write_page"]
