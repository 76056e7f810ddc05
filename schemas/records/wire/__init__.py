"""Generated Avro encoders and decoders, the fast path of `schemas/codec.py`."""
