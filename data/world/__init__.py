"""The generated world: linked entities, documents about them, and questions with gold."""
