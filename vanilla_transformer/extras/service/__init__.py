"""Translation for services, which answer many single requests at a time."""
