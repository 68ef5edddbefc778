"""The other ways to run the same weights on a CPU, measured side by side with a bundle's variants."""
