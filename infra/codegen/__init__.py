"""Generators of the Avro fast path, `schemas/records/wire`: straight-line encoders and decoders."""
