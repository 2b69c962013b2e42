"""Task folders for Harbor, whose verifier posts the artefact to `pkb serve`."""
