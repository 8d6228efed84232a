"""The events of a job: their types, their encoding, the state that follows from them, and their texts."""
