"""Trains until something ends it: python -m tests.callbacks.ending_script FOLDER OPTIONS-AS-JSON.

Every env process imports this, so it imports nothing.
"""

if __name__ == "__main__":
    from tests.callbacks.ending_run import main

    main()
