from hypothesis import settings

# the first example of a test pays for imports and caches; on a busy machine that is no failure
settings.register_profile("topology", deadline=None)
settings.load_profile("topology")
