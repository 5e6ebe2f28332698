"""Failures that users of other tools reported, and what a user of lnexp meets instead.

Case -> where it is held, beside the module here that completes it:

B1   test_yaml.py        tests/test_yamlfile.py, test_sweep.py (one point, round trips)
B2   test_yaml.py        tests/test_config_errors.py (values), test_yamlfile.py (spellings)
B3   test_yaml.py        tests/test_config_errors.py (keys), test_yamlfile.py (duplicates, tabs)
B4   test_yaml.py        tests/test_config_errors.py (values, structure), test_sweep.py (seeds)
B5   test_sweeps.py      tests/runs/test_resume.py (half lines, other columns), test_rundir.py
B7   test_names.py       tests/test_naming.py, test_cli.py (paths, skipping), runs/test_execute.py
B8   test_sweeps.py      tests/runs/test_troubled.py (five runs, four kinds), test_stop.py
B12  test_figures.py     train/test_loop.py (a bad step, and going on)
B13  test_figures.py     present/test_plots.py (30 colours, headless, a failing plot, a full disk)
B14  test_sweeps.py      scripts/bench/sweep.py (its time)
B15  test_sweeps.py      tests/runs/test_execute.py (two workers; alone), test_cluster.py (Ray)
B16  test_sweeps.py      tests/runs/test_interrupt.py (signals), test_soak.py, test_disk.py
C1   test_text.py        tests/test_data.py (encodings), test_cli.py (an ASCII console)
C3   test_text.py        tests/test_data.py (one split)
C5   test_text.py        tests/test_data.py (0 and rounding), train/test_loop.py (the val loss)
C6   test_text.py        tests/test_sample.py (prompts, checkpoints), runs/test_execute.py
C9   test_shapes.py      tests/test_config_errors.py (all pairs at once), test_cli.py (python -O)
A1   test_births.py      tests/measure/test_autopsy.py (one norm in a 6-block model)
A2   test_half.py        tests/analysis/test_explain.py (the words)
A5   test_scaling.py     tests/train/test_precision.py (one skip, a number of skips)
A6   test_scaling.py     tests/train/test_precision.py (totals; every scale and precision)
A7   test_half.py        tests/measure/test_autopsy.py (the figures of the failed update)
A8   test_half.py        tests/train/test_precision.py (the gains), analysis/test_causes.py
A9   test_births.py      tests/measure/test_autopsy.py (separate q, k, v)
A10  test_located.py     tests/measure/test_autopsy.py (6 blocks, losses with and without)
A11  test_monitoring.py  tests/train/test_loop.py (placement x residual x activation)
A12  test_stalls.py      tests/analysis/test_verdicts.py (each rule on made-up numbers)
A14  test_init.py        tests/model/test_init.py (each draw; tying), test_cli.py (lnexp plan)
A16  test_devices.py     tests/train/test_precision.py (types read off a forward)
A17  test_spikes.py      tests/analysis/test_statistics.py (the spike rule)
C10  test_devices.py     tests/train/test_precision.py (every precision trains)
C11  test_compile.py
C12  test_devices.py     tests/test_sample.py (logits); test_autopsy.py (the step again in fp64)
C13  test_sweeps.py      tests/runs/test_resume.py (precision x optimizer x schedule)
C14  test_stalls.py      tests/analysis/test_causes.py; present/test_plots.py (levels in the plot)
"""
