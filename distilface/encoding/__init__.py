"""`encode`: texts of files or a pipe to vectors, in flat memory, into one file or a resumable folder of shards."""

from distilface.encoding.folder import FolderResult, encode_folder
from distilface.encoding.single import encode_to
from distilface.encoding.writers import FORMATS

__all__ = ["FORMATS", "FolderResult", "encode_folder", "encode_to"]
