"""What is kept beyond a request: a database, and in it the stored answers and conversations. It knows neither HTTP nor models."""
