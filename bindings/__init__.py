"""The boundary: classes that own memory, take locks and turn status codes into exceptions."""
