# docker build -t memsys-bench .                                                          (USAGE.md, "In a container")
# docker run --rm --read-only --tmpfs /tmp --user "$(id -u):$(id -g)" -v "$PWD:/work" memsys-bench reproduce-table4
FROM python:3.11-slim AS build
WORKDIR /source
RUN python -m venv /opt/memsys-bench
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY conf conf
COPY data_loaders data_loaders
COPY eval eval
COPY memsys memsys
COPY results/published results/published
COPY scripts scripts
# Two packages have no wheel (Makefile, WHEELS); all versions are those of constraints.txt. Compiled here, as nothing can be written later.
RUN /opt/memsys-bench/bin/pip install --no-cache-dir --disable-pip-version-check --compile \
    --only-binary=:all: --no-binary=memsys-bench,antlr4-python3-runtime,rouge-score -c constraints.txt '.[cluster,graph]'

FROM python:3.11-slim
COPY --from=build /opt/memsys-bench /opt/memsys-bench
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin bench && install -d -o bench /work
# Any user may run it and nothing but /work and /tmp is written.
ENV PATH=/opt/memsys-bench/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /work
ENTRYPOINT ["memsys-bench"]
CMD ["help"]
