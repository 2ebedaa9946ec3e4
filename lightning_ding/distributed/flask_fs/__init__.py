"""The transport with messages over HTTP, and tensors in files on a disk that all machines share.

``flask_fs.server`` needs aiohttp; the other modules need no extra.
"""

CHANNEL_HEADER = "X-Lightning-Ding-Channel"
"""Header with the channel number of the run."""
MARK_HEADER = "X-Lightning-Ding-Mark"
"""Header of answers with the name of a file that exists only in the coordinator's folder of the run."""
