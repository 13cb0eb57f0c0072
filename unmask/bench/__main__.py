"""`python -m unmask.bench samplers`"""

from unmask.bench.samplers import main

if __name__ == "__main__":
    main()
