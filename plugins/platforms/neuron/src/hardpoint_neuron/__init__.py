"""The AWS Neuron platform for Hardpoint. The entry point names `hardpoint_neuron.plugin:plugin`."""
