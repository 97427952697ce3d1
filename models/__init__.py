"""Turn stored trials into a cost model and a policy table."""

if __name__ == "models":
    raise ImportError(
        "import it as strata.models; the top-level folder is only where its sources live"
    )
