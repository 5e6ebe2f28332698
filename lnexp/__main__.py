from lnexp.cli import main

main()
