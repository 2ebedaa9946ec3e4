"""Control over HTTP, tensors in files on a disk that all machines share.

``FileStore`` and ``read_token`` need nothing more than the project; ``flask_fs.server`` and ``flask_fs.channel`` need
Flask, waitress and requests.
"""

NEEDS_FLASK = "flask_fs needs Flask, waitress and requests: pip install lightning_ding[flask]"
CHANNEL_HEADER = "X-Lightning-Ding-Channel"
"""Header that says which run a message is for."""
MARK_HEADER = "X-Lightning-Ding-Mark"
"""Header of answers: name of a file that is in the coordinator's folder of the run, and in no other folder."""
