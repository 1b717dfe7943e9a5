"""What both services mean by the same word. No torch, no business rules of either service."""
