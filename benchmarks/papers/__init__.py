"""The claims of the attention papers that two cores can check, one file a paper."""
