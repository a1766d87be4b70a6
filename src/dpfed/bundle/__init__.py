# SPDX-License-Identifier: Apache-2.0
"""A trained model as a folder that people use: what it takes, what it is, what it guarantees.

description.py   model.json: the one value that says all of it
folder.py        the folder on the disk: written whole, read as hostile data
card.py          the model card, which a person reads in a minute
modules.py       from a description and numbers to a plain torch module
inputs.py        from a table or an array to what the module takes
trained.py       ``TrainedModel``: predict, as scikit-learn would
scoring.py       a file in, a file of predictions out, in parts
export.py        ONNX and torch.export
"""
