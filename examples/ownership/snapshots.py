"""A snapshot in an object store that only the newest owner can replace: a conditional put.

The object store knows nothing of claims and leases, so the token goes with the data. Any store with
conditional puts will do; S3's are ``If-Match`` and ``If-None-Match``. Until the newest owner has
put one, an older owner's is accepted: all that it has is below the newest one's fence offset.
"""

import json

CHANGED_MEANWHILE = {"PreconditionFailed", "ConditionalRequestConflict"}


class NewerOwnerError(Exception):
    """The snapshot is of an owner with a higher token: this process owns nothing any more."""


class Snapshots:
    """One object: ``{"token": 7, "next_offset": 120, "entries": {...}}``."""

    def __init__(self, s3, bucket, key):
        self.s3, self.bucket, self.key = s3, bucket, key

    def load(self):
        """The newest snapshot and its ETag; an empty one and None if there is none."""
        try:
            found = self.s3.get_object(Bucket=self.bucket, Key=self.key)
        except self.s3.exceptions.NoSuchKey:
            return {"token": 0, "next_offset": 0, "entries": {}}, None
        return json.load(found["Body"]), found["ETag"]

    def put(self, token, next_offset, entries):
        """Replace the snapshot. Raises NewerOwnerError, and changes nothing then."""
        from botocore.exceptions import ClientError

        # The token is in the body, not beside it: an ETag tells only bodies apart.
        snapshot = {"token": token, "next_offset": next_offset, "entries": entries}
        body = json.dumps(snapshot).encode()
        while True:
            newest, etag = self.load()
            if newest["token"] > token:
                raise NewerOwnerError(f"the snapshot has token {newest['token']}, not {token}")
            condition = {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}
            try:
                self.s3.put_object(Bucket=self.bucket, Key=self.key, Body=body, **condition)
            except ClientError as error:
                if error.response["Error"]["Code"] not in CHANGED_MEANWHILE:
                    raise
            else:
                return
