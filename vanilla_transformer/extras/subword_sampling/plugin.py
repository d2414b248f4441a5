"""Sub-word sampling: BPE-dropout, and unigram models, from which splits are sampled."""

SEAMS = {
    "recipe": {"sampling": "recipe_block:SubwordSampling"},
    "vocabulary": {"unigram": "unigram:learn_unigram"},
}
