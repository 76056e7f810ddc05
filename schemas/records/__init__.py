"""Record types generated from `schemas/avro/*.avsc`, one module per record."""
