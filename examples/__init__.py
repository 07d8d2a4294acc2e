"""Programs that use Hardpoint. A package, so that no installed package named `examples` can stand in its place."""
