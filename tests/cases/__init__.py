"""Failures that users of other tools reported, and what a user of lnexp meets instead.

Case -> where it is held, beside the module here that completes it:

B1   test_yaml.py        tests/test_yamlfile.py, test_sweep.py (one point, round trips)
B2   test_yaml.py        tests/test_config_errors.py (values), test_yamlfile.py (spellings)
B3   test_yaml.py        tests/test_config_errors.py (keys), test_yamlfile.py (duplicates, tabs)
B4   test_yaml.py        tests/test_config_errors.py (values, structure), test_sweep.py (seeds)
B7   test_names.py       tests/test_naming.py, test_cli.py (paths, skipping), runs/test_execute.py
C1   test_text.py        tests/test_data.py (encodings), test_cli.py (an ASCII console)
C3   test_text.py        tests/test_data.py (one split)
C5   test_text.py        tests/test_data.py (0 and rounding), train/test_loop.py (the val loss)
C6   test_text.py        tests/test_sample.py (prompts, checkpoints), runs/test_execute.py
C9   test_shapes.py      tests/test_config_errors.py (all pairs at once), test_cli.py (python -O)
A11  test_monitoring.py  tests/train/test_loop.py (placement x residual x activation)
A14  test_init.py        tests/model/test_init.py (each draw; tying), test_cli.py (lnexp plan)
"""
