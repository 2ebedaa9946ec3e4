"""The coordinator: hands out tasks, keeps the data, and publishes the weights."""
