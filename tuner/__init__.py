"""Plan, run and store ring trials (the sweep behind ``strata tune``)."""

if __name__ == "tuner":
    raise ImportError(
        "import it as strata.tuner; the top-level folder is only where its sources live"
    )
